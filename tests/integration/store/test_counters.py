"""Sums over the whole service."""

from nightshift.store import Store
from tests.integration.store.racing import at_once, both_databases


def count(store: Store, name: str, amount: int) -> None:
    with store.transaction() as tx:
        tx.counters.add(name, amount)


def counters(store: Store) -> dict[str, int]:
    with store.snapshot() as tx:
        return dict(tx.counters.values())


def test_what_is_counted_adds_up_by_name(store: Store) -> None:
    assert counters(store) == {}

    for name, amount in (("tokens_redone", 12), ("rows_redone", 1), ("tokens_redone", 30), ("rows_dead", 0)):
        count(store, name, amount)

    assert counters(store) == {"rows_redone": 1, "tokens_redone": 42}


@both_databases
def test_several_who_count_at_once_lose_nothing(store: Store) -> None:
    at_once(*[lambda: count(store, "rows_redone", 1) for _ in range(8)])

    assert counters(store) == {"rows_redone": 8}
