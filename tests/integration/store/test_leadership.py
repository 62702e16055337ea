"""Leadership: one holder of a duty at a time, and one that slept through its time is refused."""

from datetime import timedelta

from nightshift.jobs.leases import Term
from nightshift.store import Store
from tests.helpers.fakes import FakeClock
from tests.integration.store.racing import at_once, both_databases

TTL = timedelta(seconds=10)


def acquire(store: Store, leader_id: str) -> Term | None:
    with store.transaction() as tx:
        return tx.leadership.acquire("scheduler", leader_id, tx.now(), tx.now() + TTL)


def renew(store: Store, leader_id: str, term: Term) -> bool:
    with store.transaction() as tx:
        return tx.leadership.renew("scheduler", leader_id, term, tx.now() + TTL)


def resign(store: Store, leader_id: str, term: Term) -> bool:
    with store.transaction() as tx:
        return tx.leadership.resign("scheduler", leader_id, term, tx.now())


@both_databases
def test_of_many_that_start_together_one_leads(store: Store, clock: FakeClock) -> None:
    first = at_once(*[lambda name=name: acquire(store, name) for name in "abcd"])
    clock.advance(seconds=10)
    second = at_once(*[lambda name=name: acquire(store, name) for name in "abcd"])

    assert sorted(term or 0 for term in first) == [0, 0, 0, 1]
    assert sorted(term or 0 for term in second) == [0, 0, 0, 2]


def test_a_leader_that_slept_is_followed_under_a_new_term_and_refused(store: Store, clock: FakeClock) -> None:
    old = acquire(store, "a")
    assert old is not None
    with store.transaction() as tx:
        assert tx.leadership.acquire("retention", "b", tx.now(), tx.now() + TTL) == 1, "another duty"
    for _ in range(2):
        clock.advance(seconds=9)
        assert acquire(store, "b") is None
        assert renew(store, "a", old)
    clock.advance(seconds=10)

    assert acquire(store, "b") == 2
    assert acquire(store, "b") is None, "a namesake that restarted must wait"
    assert renew(store, "a", old) is False
    assert resign(store, "a", old) is False
    assert renew(store, "b", Term(2)) is True
    clock.advance(seconds=10)
    assert acquire(store, "a") == 3, "under the same name"
    assert renew(store, "a", old) is False
