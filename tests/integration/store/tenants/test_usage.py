"""Usage is written with the results that it counts, so that each row is counted once."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta

import pytest

from nightshift.jobs import Usage
from nightshift.lifecycle import transitions
from nightshift.store import Store, Transaction
from nightshift.store.databases.database import Database
from nightshift.store.shards.shards import AlreadyListed
from nightshift.tenants.usage import DailyUsage
from tests.helpers.fakes import (
    STARTS_AT,
    FakeClock,
    a_segment,
    an_answer,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit_online,
)
from tests.integration.store.racing import at_once, both_databases
from tests.integration.store.watching import hand_back

EVER = (date(2000, 1, 1), date(2100, 1, 1))
DAY = STARTS_AT.date()
OTHER = "other-model"


def used(store: Store, tenant: str | None = None) -> Sequence[DailyUsage]:
    with store.snapshot() as tx:
        return tx.usage.list(tenant, limit=100, since=EVER[0], until=EVER[1])


def answer(store: Store, status_code: int = 200, **overrides: object) -> None:
    claim = claimed_online(store, submit_online(store, **overrides).shard_id)
    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(status_code), tx.now())


def count(store: Store, day: date, model: str, tenant: str = "acme") -> None:
    with store.transaction() as tx:
        tx.usage.add(tenant, model, day, 1, 0, Usage(1, 2, 0))


def test_answers_and_rows_are_summed_up_per_tenant_and_model(store: Store) -> None:
    job = planned(store, tenant_id="acme")
    lease = claimed(store).lease
    commit_rows(store, lease, rows=4, failed=1)
    answer(store, tenant_id="acme")
    answer(store, 400, tenant_id="acme")
    answer(store, tenant_id="other")

    [acme] = used(store, "acme")
    [other] = used(store, "other")

    assert acme == DailyUsage(
        tenant_id="acme",
        model=job.model or "",
        day=DAY,
        succeeded=4,
        failed=2,
        prompt_tokens=40 + 7 + 7,
        cached_tokens=4,
        completion_tokens=20 + 3 + 3,
        reasoning_tokens=0,
    )
    assert (other.succeeded, other.failed, other.total_tokens) == (1, 0, 10)


def test_tokens_of_thoughts_are_summed_up_and_those_of_a_job_are_its_own(store: Store) -> None:
    claim = claimed_online(store, submit_online(store).shard_id)
    thoughtful = replace(an_answer(200), usage=Usage(7, 9, 0, 5))
    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, thoughtful, tx.now())
        tx.usage.add("acme", claim.job.model or "", DAY, 1, 0, Usage(1, 4, 0, 2))

    with store.snapshot() as tx:
        job = tx.jobs.fetch(claim.job.id)
        recorded = tx.shards.online_result(job.tenant_id, job.id)
    assert job.usage == thoughtful.usage
    assert recorded is not None
    assert recorded.usage == thoughtful.usage
    assert sum(usage.reasoning_tokens for usage in used(store)) == 7


def test_rows_are_counted_once_when_their_shard_is_resumed(store: Store) -> None:
    planned(store)
    lost = claimed(store).lease
    commit_rows(store, lost, rows=4)
    assert hand_back(store, lost)
    lease = claimed(store).lease

    assert commit_rows(store, lost, 1, rows=4) is False  # too late
    assert commit_rows(store, lease, 0, rows=3) is True

    assert sum(usage.succeeded for usage in used(store)) == 7


def test_a_segment_that_is_listed_twice_is_counted_once(store: Store) -> None:
    planned(store)
    lease = claimed(store).lease
    commit_rows(store, lease, rows=4)

    with pytest.raises(AlreadyListed):
        commit_rows(store, lease, rows=4)

    assert [usage.succeeded for usage in used(store)] == [4]


def test_what_is_rolled_back_is_not_counted(store: Store) -> None:
    planned(store)
    lease = claimed(store).lease

    def fail(tx: Transaction) -> None:
        transitions.commit_segment(tx, lease, a_segment(lease), tx.now(), rows_total=None)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        store.run(fail)

    assert used(store) == []


def test_a_day_is_the_databases_in_utc(store: Store, clock: FakeClock) -> None:
    answer(store)
    clock.advance(hours=1)  # past midnight, and the end of the month
    answer(store)

    assert [usage.day for usage in used(store)] == [DAY + timedelta(days=1), DAY]


def test_usage_is_listed_by_days_and_models_in_pages(store: Store) -> None:
    for day, model in (
        (DAY, "a"),
        (DAY, "b"),
        (DAY - timedelta(days=1), "a"),
        (DAY - timedelta(days=9), "a"),
    ):
        count(store, day, model)
    days = {"since": DAY - timedelta(days=1), "until": DAY}

    with store.snapshot() as tx:
        first = tx.usage.list("acme", limit=2, **days)
        rest = tx.usage.list("acme", limit=2, after=(first[-1].day, first[-1].model), **days)
        of_a = tx.usage.list("acme", limit=9, model="a", **days)

    assert [(usage.day, usage.model) for usage in (*first, *rest)] == [
        (DAY, "a"), (DAY, "b"), (DAY - timedelta(days=1), "a")
    ]  # fmt: skip
    assert [usage.day for usage in of_a] == [DAY, DAY - timedelta(days=1)]


@both_databases
def test_transactions_that_count_for_the_same_tenants_at_once_lose_nothing(database: Database) -> None:
    """Both count in opposite orders: neither waits for the other in a circle."""
    store = Store(database)

    def count_all(tenants: Sequence[str]) -> None:
        for _ in range(10):
            with store.transaction() as tx:
                for tenant in tenants:
                    tx.usage.add(tenant, OTHER, DAY, 1, 0, Usage(1, 1, 0))

    at_once(lambda: count_all(["a", "b", "c"]), lambda: count_all(["c", "b", "a"]))

    assert [(usage.tenant_id, usage.succeeded) for usage in used(store)] == [("a", 20), ("b", 20), ("c", 20)]
