"""Jobs end when their time is over, too many rows fail, or they are cancelled, whatever workers do."""

import pytest

from nightshift.jobs import JobState, ShardState, StopReason
from nightshift.store import Store
from nightshift.store.shards.shards import STOPPED_MAX
from scheduler.duties.stopping import Deadlines, DeadlinesConfig, Stopping, StoppingConfig
from tests.helpers.fakes import (
    MODEL,
    FakeClock,
    a_spec,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.watching import fetch, hand_back, request_stop, shard_states, stop_held

pytestmark = pytest.mark.databases("postgresql")

CONFIG = StoppingConfig()


@pytest.fixture
def deadlines(store: Store) -> Deadlines:
    return Deadlines(store, DeadlinesConfig(error_rate_rows_min=10))


@pytest.fixture
def stopping(store: Store) -> Stopping:
    return Stopping(store, CONFIG)


# -- told to stop ------------------------------------------------------------------------------------------


def test_a_job_past_its_window_is_told_to_stop(store: Store, clock: FakeClock, deadlines: Deadlines) -> None:
    job = planned(store, shards=2, spec=a_spec(completion_window_s=60))
    claimed(store)
    assert deadlines.run_once(clock.advance(seconds=59)).expired == 0
    assert deadlines.run_once(clock.advance(seconds=1)).expired == 1
    assert fetch(store, job).stop_reason is StopReason.EXPIRED
    assert shard_states(store, job) == [ShardState.LEASED, ShardState.STOPPED]
    assert deadlines.run_once(clock.now).expired == 0


def test_a_job_past_its_run_time_is_told_to_stop_from_its_first_claim_on(
    store: Store, clock: FakeClock, deadlines: Deadlines
) -> None:
    job = planned(store, spec=a_spec(max_runtime_s=60))
    assert deadlines.run_once(clock.advance(hours=1)).expired == 0
    claimed(store)
    assert deadlines.run_once(clock.advance(seconds=60)).expired == 1
    assert fetch(store, job).stop_reason is StopReason.EXPIRED


def test_a_job_whose_input_was_never_read_expires_too(
    store: Store, clock: FakeClock, deadlines: Deadlines
) -> None:
    job = submit(store, spec=a_spec(completion_window_s=60))
    assert deadlines.run_once(clock.advance(seconds=60)).expired == 1
    with store.snapshot() as tx:
        assert [waiting.id for waiting in tx.jobs.to_finalize(10)] == [job.id]


def test_an_online_request_without_an_answer_expires_at_once(
    store: Store, clock: FakeClock, deadlines: Deadlines
) -> None:
    submitted = submit_online(store)
    assert deadlines.run_once(clock.advance(seconds=600)).expired == 1
    assert fetch(store, submitted.job).state is JobState.EXPIRED


def test_a_job_with_too_many_failed_rows_is_told_to_stop(
    store: Store, clock: FakeClock, deadlines: Deadlines
) -> None:
    job = planned(store, spec=a_spec(max_error_rate=0.1))
    lease = claimed(store).lease
    commit_rows(store, lease, rows=9, failed=5)
    assert deadlines.run_once(clock.now).failed == 0  # too few to tell
    commit_rows(store, lease, 1, rows=31)
    assert deadlines.run_once(clock.now).failed == 1  # 5 of 40
    assert fetch(store, job).stop_reason is StopReason.FAILED


# -- and stopped -------------------------------------------------------------------------------------------


def test_a_shard_handed_back_after_the_stop_ends_instead_of_waiting_for_ever(
    store: Store, clock: FakeClock, stopping: Stopping
) -> None:
    job = planned(store)
    lease = claimed(store).lease
    request_stop(store, job)
    assert hand_back(store, lease)
    assert stopping.run_once(clock.now).shards_ended == 1
    assert shard_states(store, job) == [ShardState.STOPPED]


def test_a_worker_has_its_grace_and_no_more(store: Store, clock: FakeClock, stopping: Stopping) -> None:
    job = planned(store)
    lease = claimed(store, ttl_s=3600).lease
    request_stop(store, job)
    assert stopping.run_once(clock.advance(seconds=CONFIG.grace_s)).shards_taken == 0
    assert commit_rows(store, lease)

    assert stopping.run_once(clock.advance(seconds=CONFIG.notice_s)).shards_taken == 1
    assert shard_states(store, job) == [ShardState.STOPPED]
    assert commit_rows(store, lease, 1) is False


def test_an_online_request_whose_worker_does_not_stop_ends_without_it(
    store: Store, clock: FakeClock, stopping: Stopping
) -> None:
    submitted = submit_online(store)
    claimed_online(store, submitted.shard_id)
    request_stop(store, submitted.job)
    stopping.run_once(clock.advance(seconds=CONFIG.grace_s + CONFIG.notice_s))
    assert fetch(store, submitted.job).state is JobState.CANCELLED


def test_an_online_request_whose_shard_is_over_ends_with_it(
    store: Store, clock: FakeClock, stopping: Stopping
) -> None:
    submitted = submit_online(store)
    lease = claimed_online(store, submitted.shard_id).lease
    request_stop(store, submitted.job)
    stop_held(store, lease)  # and the worker died before it could say so of the job
    assert stopping.run_once(clock.now).online_ended == 1
    ended = fetch(store, submitted.job)
    assert (ended.state, ended.counts.total, ended.counts.failed) == (JobState.CANCELLED, 1, 1)


def test_a_job_of_very_many_shards_is_stopped_in_short_transactions(
    store: Store, clock: FakeClock, stopping: Stopping
) -> None:
    job = planned(store, shards=2 * STOPPED_MAX + 1)

    request_stop(store, job)
    with store.snapshot() as tx:
        assert tx.shards.states(job.id)[ShardState.STOPPED] == STOPPED_MAX
        assert tx.claims.bulk("worker", [MODEL], tx.now(), 30) is None
        assert tx.jobs.to_finalize(10) == []

    passes = [stopping.run_once(clock.now) for _ in range(2)]
    assert [(made.shards_ended, made.has_more) for made in passes] == [(STOPPED_MAX, True), (1, False)]
    with store.snapshot() as tx:
        assert [waiting.id for waiting in tx.jobs.to_finalize(10)] == [job.id]
