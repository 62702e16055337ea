"""Which rows the engine may have while one runs alone, and what is journalled."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import BulkClaim, CrashHistory
from nightshift.lifecycle.recovery import release_worker
from nightshift.store import Store
from nightshift.store.shards.leases import ExpiredLease
from tests.helpers.fakes import a_dead_letter
from tests.unit.workers.scripted import claim_bulk, plan_bulk
from workers.leases.heartbeat import LeaseLost
from workers.leases.isolation import CrashWatch, Isolation, Watch


@pytest.fixture
def claim(store: Store) -> BulkClaim:
    plan_bulk(store, "file-input")
    return claim_bulk(store)


def watched(
    claim: BulkClaim,
    store: Store,
    isolation: Isolation,
    suspects: Sequence[int] = (),
    dead: int | None = None,
    rows_at_risk: int = 100,
) -> CrashWatch:
    dead_rows = frozenset() if dead is None else frozenset({dead})
    history = CrashHistory(2, tuple(suspects), dead_rows)
    return CrashWatch(replace(claim, crash_history=history), store, isolation, rows_at_risk)


def held(store: Store, claim: BulkClaim) -> ExpiredLease:
    with store.snapshot() as tx:
        [lease] = tx.leases.of_worker(claim.lease.worker_id, 10)
    return lease


def journal(store: Store, claim: BulkClaim) -> tuple[int, ...]:
    return held(store, claim).in_flight


def crash_count(store: Store, claim: BulkClaim) -> int:
    return held(store, claim).crash_count


def claimed_after_a_crash(store: Store, claim: BulkClaim) -> BulkClaim:
    with store.transaction() as tx:
        release_worker(tx, claim.lease.worker_id, 20, tx.now(), ExitCause.KILLED)
    return claim_bulk(store)


def test_one_enters_alone_once_the_worker_is_empty_and_keeps_others_out() -> None:
    isolation, one, other = Isolation(), object(), object()
    assert isolation.enter(other)

    assert not isolation.enter_alone(one)
    assert isolation.is_held
    assert not isolation.enter(other), "it would never become quiet"
    isolation.leave(other)
    assert isolation.enter_alone(one)
    assert not isolation.enter(other)
    assert not isolation.enter_alone(other)

    isolation.leave(one)
    isolation.release(other)
    assert not isolation.enter(other), "it was not the other's to give up"
    isolation.release(one)
    assert isolation.enter(other)


def test_a_wait_to_be_alone_ends_when_the_worker_is_empty_or_it_is_given_up() -> None:
    isolation, one, other = Isolation(), object(), object()
    assert isolation.enter(other)
    entered: list[bool] = []
    waiter = threading.Thread(
        target=lambda: entered.append(isolation.wait_to_enter_alone(one, lambda: False))
    )
    waiter.start()
    isolation.leave(other)
    waiter.join(10)
    assert entered == [True]

    assert not isolation.wait_to_enter_alone(other, lambda: True)


def test_an_unwatched_shard_waits_while_another_is_alone() -> None:
    isolation, suspected = Isolation(), object()
    watch = Watch(isolation)
    assert watch.admit(3)
    assert not isolation.enter_alone(suspected)

    assert not watch.admit(4)
    watch.finished(3)
    assert isolation.enter_alone(suspected)
    assert not watch.is_dead(3)


def test_rows_are_journalled_before_the_engine_has_them(claim: BulkClaim, store: Store) -> None:
    watch = watched(claim, store, Isolation())

    assert watch.admit(3)
    assert watch.admit(4)
    assert journal(store, claim) == (3, 4)
    watch.withdraw(3)
    watch.finished(4)
    assert journal(store, claim) == ()


def test_a_suspect_runs_alone_and_is_cleared_when_it_has_finished(claim: BulkClaim, store: Store) -> None:
    with store.transaction() as tx:
        tx.dead_letters.record_crash(claim.shard.id, [4], ExitCause.ABORTED)
    told: list[bool] = []
    isolation = Isolation(on_free=lambda: told.append(not isolation.is_held))
    watch = watched(claim, store, isolation, suspects=[4])

    assert watch.admit(3)
    assert not watch.admit(4), "a row of its own shard is there as well"
    watch.finished(3)
    assert watch.admit(4)
    assert journal(store, claim) == (4,)
    assert not watch.admit(5), "not beside a suspect"
    assert told == []
    watch.finished(4)

    assert told == [True]
    assert not isolation.is_held
    assert watch.admit(5)
    with store.snapshot() as tx:
        assert tx.dead_letters.suspects(claim.shard.id) == {}


def test_a_suspect_the_engine_did_not_take_stays_one(claim: BulkClaim, store: Store) -> None:
    with store.transaction() as tx:
        tx.dead_letters.record_crash(claim.shard.id, [4], ExitCause.ABORTED)
    watch = watched(claim, store, Isolation(), suspects=[4])

    assert watch.admit(4)
    watch.withdraw(4)

    with store.snapshot() as tx:
        assert list(tx.dead_letters.suspects(claim.shard.id)) == [4]


def test_a_shard_whose_first_rows_all_finish_is_not_watched_any_more(claim: BulkClaim, store: Store) -> None:
    """No row it still has caused the crash: a later one is a first one."""
    claim = claimed_after_a_crash(store, claim)
    watch = watched(claim, store, Isolation(), rows_at_risk=2)
    assert watch.admit(3)
    watch.withdraw(3)  # the engine had no room: it was not begun
    for row in (3, 4, 5):
        assert watch.admit(row)
    watch.finished(5)
    watch.finished(4)
    assert crash_count(store, claim) == 1, "row 3 was there, perhaps, and has not finished"

    watch.finished(3)

    assert crash_count(store, claim) == 0
    assert watch.admit(6)
    assert journal(store, claim) == ()


def test_a_row_that_is_admitted_again_counts_once(claim: BulkClaim, store: Store) -> None:
    claim = claimed_after_a_crash(store, claim)
    watch = watched(claim, store, Isolation(), rows_at_risk=2)
    for row in (3, 3, 4):  # the engine broke the first one off
        assert crash_count(store, claim) == 1
        assert watch.admit(row)
        watch.finished(row)
    assert crash_count(store, claim) == 0


def test_a_shard_with_a_suspect_further_on_is_watched(claim: BulkClaim, store: Store) -> None:
    claim = claimed_after_a_crash(store, claim)
    watch = watched(claim, store, Isolation(), suspects=[2, 9], rows_at_risk=1)
    assert watch.admit(3)
    watch.finished(3)
    assert crash_count(store, claim) == 1

    assert watch.admit(9)
    watch.finished(9)

    assert crash_count(store, claim) == 0, "row 2 had its result before this lease"


def test_a_shard_with_a_dead_row_is_watched_to_its_end(claim: BulkClaim, store: Store) -> None:
    claim = claimed_after_a_crash(store, claim)
    watch = watched(claim, store, Isolation(), dead=9, rows_at_risk=1)
    assert watch.admit(3)

    watch.finished(3)

    assert crash_count(store, claim) == 1
    assert watch.admit(4)
    assert journal(store, claim) == (4,)


def test_a_shard_that_can_begin_nothing_keeps_no_other_out(claim: BulkClaim, store: Store) -> None:
    isolation, other = Isolation(), object()
    watch = watched(claim, store, isolation, suspects=[4, 5])
    assert watch.admit(4)
    watch.on_admission_blocked()
    assert not isolation.enter(other), "a suspect is under way"
    watch.finished(4)
    assert not isolation.enter(other), "the next one's turn"

    watch.on_admission_blocked()

    assert isolation.enter(other)
    assert not watch.admit(5)
    isolation.leave(other)
    assert watch.admit(5), "alone again when it can be begun"


def test_a_shard_that_ends_releases_the_isolation(claim: BulkClaim, store: Store) -> None:
    isolation = Isolation()
    watch = watched(claim, store, isolation, suspects=[4, 5])
    assert watch.admit(4)

    watch.close()

    assert isolation.enter_alone(object())


@pytest.mark.parametrize("name", ["r4", "a\0b", "\ud800"], ids=["plain", "nul", "surrogate"])
def test_a_dead_row_is_known_though_no_database_keeps_its_name(
    claim: BulkClaim, store: Store, name: str
) -> None:
    with store.transaction() as tx:
        tx.dead_letters.insert(a_dead_letter(claim.job, claim.shard.id, 4))

    watch = watched(claim, store, Isolation(), dead=4)
    watch.name_dead(4, name)

    assert (watch.is_dead(4), watch.is_dead(5)) == (True, False)


def test_no_row_is_begun_under_a_lease_that_is_lost(claim: BulkClaim, store: Store) -> None:
    watch = watched(claim, store, Isolation())
    with store.transaction() as tx:
        assert tx.leases.hand_back(claim.lease)

    with pytest.raises(LeaseLost):
        watch.admit(3)
