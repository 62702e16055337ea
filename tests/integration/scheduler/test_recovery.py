"""Workers disappear; their shards come back, or end."""

import pytest

from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.jobs import JobState, ShardState
from nightshift.jobs.leases import Lease
from nightshift.lifecycle.recovery import LEASES_EXPIRED, release_worker
from nightshift.lifecycle.transitions import Submitted
from nightshift.store import Store
from scheduler.duties.recovery import Recovery, RecoveryConfig
from tests.helpers.fakes import (
    WORKER,
    FakeClock,
    a_new_request,
    a_spec,
    a_worker,
    claim,
    claimed,
    claimed_online,
    completed,
    planned,
    submit_online,
)
from tests.integration.store.watching import counters, fetch, request_stop, shard_states

pytestmark = pytest.mark.databases("postgresql")

CONFIG = RecoveryConfig(attempts_max=3)


@pytest.fixture
def duty(store: Store) -> Recovery:
    return Recovery(store, CONFIG)


def once_only(store: Store) -> Submitted:
    wishes = a_spec(completion_window_s=600, input=None, output=None, retry_on_interrupt=False)
    return submit_online(store, spec=wishes, id=a_new_request().id)


def attempts(store: Store, lease: Lease) -> int:
    with store.snapshot() as tx:
        shard = tx.shards.get(lease.tenant_id, lease.shard_id)
    assert shard is not None
    return shard.attempts


def test_a_live_workers_shard_is_left_alone(store: Store, clock: FakeClock, duty: Recovery) -> None:
    job = planned(store)
    claimed(store, ttl_s=30)
    assert duty.run_once(clock.advance(seconds=29)).counts == dict.fromkeys(
        duty.run_once(clock.now).counts, 0
    )
    assert shard_states(store, job) == [ShardState.LEASED]


def test_a_dead_workers_shard_is_claimed_by_another(store: Store, clock: FakeClock, duty: Recovery) -> None:
    planned(store)
    lost = claimed(store, "worker_1", ttl_s=30).lease
    assert duty.run_once(clock.advance(seconds=30)).retried == 1

    rescued = claimed(store, "worker_2")
    assert rescued.lease.term > lost.term
    assert completed(store, lost, rows_total=0) is False
    assert completed(store, rescued.lease, rows_total=0) is True


def test_a_shard_tried_often_enough_is_given_up(store: Store, clock: FakeClock, duty: Recovery) -> None:
    job = planned(store)
    for _ in range(CONFIG.attempts_max - 1):
        claimed(store, ttl_s=30)
        duty.run_once(clock.advance(seconds=15))
        assert duty.run_once(clock.advance(seconds=15)).retried == 1
    claimed(store, ttl_s=30)
    duty.run_once(clock.advance(seconds=15))
    assert duty.run_once(clock.advance(seconds=15)).given_up == 1
    assert shard_states(store, job) == [ShardState.FAILED]
    assert fetch(store, job).state is JobState.RUNNING  # it goes on to be assembled with what it has


def test_leases_that_ran_out_while_the_database_was_away_are_not_charged(
    store: Store, clock: FakeClock, duty: Recovery
) -> None:
    """However often that happens: their workers live, and no row has crashed one."""
    planned(store)
    for _ in range(2 * CONFIG.attempts_max):
        duty.run_once(clock.now)
        lease = claimed(store, ttl_s=30).lease
        assert duty.run_once(clock.advance(seconds=40)).retried == 1
        assert attempts(store, lease) == 0
    assert counters(store) == {LEASES_EXPIRED: 2 * CONFIG.attempts_max}


@pytest.mark.parametrize(
    ("passes_before_s", "passes_after_s", "charged"),
    [
        ((), (29, 2), 0),  # the database is back, and the worker still waits for an answer
        ((40,), (10, 10, 10), 0),  # its last heartbeat began in the outage, and waits until its own limit
        ((40, 10, 10), (10, 10, 10), 1),
    ],
    ids=["an outage", "a lease taken as soon as it is over", "some time after one"],
)
def test_a_worker_that_dies_is_charged_unless_an_outage_may_have_kept_it_from_renewing(
    store: Store,
    clock: FakeClock,
    duty: Recovery,
    passes_before_s: tuple[int, ...],
    passes_after_s: tuple[int, ...],
    charged: int,
) -> None:
    planned(store)
    duty.run_once(clock.now)
    for seconds in passes_before_s:
        duty.run_once(clock.advance(seconds=seconds))
    lease = claimed(store, ttl_s=30).lease
    passes = [duty.run_once(clock.advance(seconds=seconds)) for seconds in passes_after_s]

    assert sum(made.retried for made in passes) == 1
    assert attempts(store, lease) == charged
    assert counters(store).get("crashes.lease_expired", 0) == charged


def test_an_online_request_that_may_run_only_once_fails(
    store: Store, clock: FakeClock, duty: Recovery
) -> None:
    submitted = once_only(store)
    claimed_online(store, submitted.shard_id)
    assert duty.run_once(clock.advance(seconds=30)).given_up == 1
    ended = fetch(store, submitted.job)
    assert (ended.state, ended.counts.failed, ended.counts.total) == (JobState.FAILED, 1, 1)
    assert ended.errors[0].code == "interrupted"


def test_a_cancelled_online_request_whose_worker_died_is_cancelled(
    store: Store, clock: FakeClock, duty: Recovery
) -> None:
    submitted = submit_online(store)
    claimed_online(store, submitted.shard_id)
    request_stop(store, submitted.job)
    assert duty.run_once(clock.advance(seconds=30)).stopped == 1
    assert fetch(store, submitted.job).state is JobState.CANCELLED


def test_a_fleet_that_died_at_once_is_rescued_in_slices(store: Store, clock: FakeClock) -> None:
    planned(store, shards=5)
    for _ in range(5):
        claimed(store, ttl_s=30)
    duty = Recovery(store, RecoveryConfig(shards_per_pass_max=2))
    clock.advance(seconds=30)
    passes = [duty.run_once(clock.now) for _ in range(3)]
    assert [(one.retried, one.has_more) for one in passes] == [(2, True), (2, True), (1, False)]
    assert claim(store) is not None


@pytest.mark.parametrize("is_first", [True, False])
def test_a_row_that_ran_alone_answers_for_its_worker_whichever_lease_runs_out_first(
    store: Store, clock: FakeClock, duty: Recovery, is_first: bool
) -> None:
    """A shard that stood by was not in the engine. One beat renews all leases, not claimed at once."""
    alone, bystander = submit_online(store).shard_id, submit_online(store).shard_id
    for _ in range(2):
        claimed_online(store, alone)
        with store.transaction() as tx:
            release_worker(tx, WORKER, CONFIG.attempts_max, tx.now(), ExitCause.ABORTED)
    in_order = (alone, bystander) if is_first else (bystander, alone)
    leases = {}
    for shard_id in in_order:
        leases[shard_id] = claimed_online(store, shard_id).lease
        clock.advance(seconds=3)
    with store.transaction() as tx:
        assert tx.dead_letters.journal(leases[alone], [0])
    for _ in range(7):
        duty.run_once(clock.advance(seconds=5))

    assert attempts(store, leases[bystander]) == 0
    with store.snapshot() as tx:
        assert tx.dead_letters.suspects(alone) == {0: 3}
        assert tx.dead_letters.suspects(bystander) == {}


def test_a_silent_worker_is_listed_as_stopped_with_the_time_it_was_last_heard_of(
    store: Store, clock: FakeClock, duty: Recovery
) -> None:
    silent, alive = a_worker(), a_worker()
    with store.transaction() as tx:
        tx.workers.register(silent)
        tx.workers.register(alive)
    clock.advance(seconds=CONFIG.worker_silent_s + 1)
    with store.transaction() as tx:
        tx.workers.mark(alive.id, alive.state, clock.now)

    assert duty.run_once(clock.now).workers_lost == 1
    with store.snapshot() as tx:
        known = {worker.id: worker for worker in tx.workers.list()}
    assert (known[silent.id].state, known[silent.id].heartbeat_at) == (
        WorkerState.STOPPED,
        silent.heartbeat_at,
    )
    assert known[alive.id].state is WorkerState.READY


def falls_silent(store: Store, clock: FakeClock) -> None:
    """A worker without work, whose machine is taken away with everything on it."""
    with store.transaction() as tx:
        tx.workers.register(a_worker(heartbeat_at=clock.now))


def pass_by(duty: Recovery, clock: FakeClock, seconds: float) -> None:
    for _ in range(round(seconds / 5)):
        duty.run_once(clock.advance(seconds=5))


def test_a_worker_that_is_lost_without_work_is_counted_too(
    store: Store, clock: FakeClock, duty: Recovery
) -> None:
    duty.run_once(clock.now)
    falls_silent(store, clock)
    pass_by(duty, clock, 2 * CONFIG.worker_silent_s)

    assert counters(store) == {"crashes.lease_expired": 1}


def test_a_worker_that_could_not_be_heard_is_not_counted_as_lost(
    store: Store, clock: FakeClock, duty: Recovery
) -> None:
    falls_silent(store, clock)
    duty.run_once(clock.advance(seconds=CONFIG.worker_silent_s + 1))  # the first check
    falls_silent(store, clock)
    duty.run_once(clock.advance(seconds=CONFIG.worker_silent_s + 1))  # nor now: the database was away
    pass_by(duty, clock, 2 * CONFIG.worker_silent_s)

    with store.snapshot() as tx:
        assert tx.workers.list(state=WorkerState.READY) == []
        assert tx.counters.values() == {}
