"""Online requests: live text first, the answer committed, then announced; and never a second answer."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nightshift.broker.token_streams import Delta, End
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import JobState, OnlineClaim, ShardState, StopReason
from nightshift.lifecycle import transitions
from nightshift.lifecycle.recovery import ONLINE_ROW
from nightshift.store import Store, Transaction
from nightshift.store.shards.dead_letters import DeadLetters
from nightshift.store.shards.leases import Leases
from tests.unit.workers.scripted import (
    TENANT,
    ManualClock,
    RecordingStreams,
    ScriptedServer,
    claim_online,
    prompt_of,
)
from tests.unit.workers.shard.helpers import wait_until
from workers.leases.heartbeat import Heartbeat
from workers.leases.isolation import Isolation
from workers.online.runner import OnlineRunner
from workers.serving.inference import Progress, refusal
from workers.serving.models import Models


class Prepared(OnlineRunner):
    """Has begun a request, on one of its threads, when `run` returns."""

    def run(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        super().run(claim, claimed_at_s)
        assert self._preparing.wait_until_idle(10)


@pytest.fixture
def runner(
    store: Store, models: Models, streams: RecordingStreams, heartbeat: Heartbeat
) -> Iterator[OnlineRunner]:
    runner = Prepared(store, models, streams, heartbeat)  # type: ignore[arg-type]
    runner.start()
    yield runner
    runner.drain(0)


def job_of(store: Store, claim: OnlineClaim):
    with store.snapshot() as tx:
        return tx.jobs.fetch(claim.job.id)


def result_of(store: Store, claim: OnlineClaim):
    with store.snapshot() as tx:
        return tx.shards.online_result(TENANT, claim.job.id)


def ended(streams: RecordingStreams) -> None:
    assert streams.ended.acquire(timeout=10), "the stream did not end"


def test_text_is_streamed_and_the_answer_is_there_when_the_stream_ends(
    store: Store, runner: OnlineRunner, model: ScriptedServer, streams: RecordingStreams, clock: ManualClock
) -> None:
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    (inference,) = model.running.values()

    model.emit(inference.id, "HEL")
    model.emit(inference.id, "LO")
    model.answer(inference.id, "HELLO")
    ended(streams)

    assert streams.text(claim.lease.shard_id) == "HELLO"
    offsets = [entry.data["offset"] for entry in streams.entries if isinstance(entry, Delta)]
    assert offsets == [0, 3], "each says where in the answer it begins"
    assert result_of(store, claim).body["choices"][0]["message"]["content"] == "HELLO"
    assert job_of(store, claim).state is JobState.SUCCEEDED
    assert job_of(store, claim).counts.succeeded == 1


@pytest.mark.parametrize("streams_answer", [False, True])
def test_log_probabilities_are_published_where_a_client_reads_them(
    store: Store,
    runner: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    clock: ManualClock,
    streams_answer: bool,
) -> None:
    claim = claim_online(store, "hello")
    body = claim.body | {"logprobs": True, "stream": streams_answer}
    runner.run(replace(claim, body=body), clock())
    (inference,) = model.running.values()

    for text in ("HEL", ""):  # a token that is no whole character has no text yet
        inference.listener(Progress(text, logprobs={"content": [{"token": text}]}))
    model.answer(inference.id, "HEL")
    ended(streams)

    published = [entry.data.get("logprobs") for entry in streams.entries if isinstance(entry, Delta)]
    tokens = [{"content": [{"token": text}]} for text in ("HEL", "")]
    assert published == (tokens if streams_answer else [None])
    assert streams.text(claim.lease.shard_id) == "HEL"


def test_a_request_that_can_never_run_is_answered_with_the_reason(
    store: Store, runner: OnlineRunner, model: ScriptedServer, streams: RecordingStreams, clock: ManualClock
) -> None:
    model.refuses = "too long"
    claim = claim_online(store, "too long")

    runner.run(claim, clock())
    ended(streams)

    result = result_of(store, claim)
    assert result.status_code == 400
    assert result.body["error"]["code"] == "context_length_exceeded"
    assert result.body["error"]["param"] == "messages"
    assert job_of(store, claim).state is JobState.FAILED


def test_a_request_the_engine_fails_on_is_answered_with_a_server_error(
    store: Store, runner: OnlineRunner, model: ScriptedServer, streams: RecordingStreams, clock: ManualClock
) -> None:
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    model.fail(next(iter(model.running)), "the logits are not finite")
    ended(streams)

    assert result_of(store, claim).status_code == 500
    assert job_of(store, claim).state is JobState.FAILED


def test_a_request_whose_image_is_not_fetched_is_answered_with_that(
    store: Store, runner: OnlineRunner, model: ScriptedServer, streams: RecordingStreams, clock: ManualClock
) -> None:
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    error = InvalidRequest("'https://a.example/b.png' was not fetched.", code="image_not_fetched")
    model.fail(next(iter(model.running)), error.message, refusal(error))
    ended(streams)

    assert result_of(store, claim).status_code == 400


def test_a_request_whose_submission_breaks_is_answered_and_does_not_stay_open(
    store: Store,
    runner: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(inference: object) -> None:
        raise ZeroDivisionError("in a template")

    monkeypatch.setattr(model, "submit", broken)
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    ended(streams)

    assert result_of(store, claim).status_code == 500
    assert job_of(store, claim).state is JobState.FAILED
    assert runner.count == 0


def test_a_stop_order_frees_the_place_and_ends_the_job(
    store: Store,
    runner: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    clock: ManualClock,
) -> None:
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    with store.transaction() as tx:
        assert transitions.request_stop(tx, claim.job, StopReason.CANCELLED, tx.now())

    heartbeat.beat()
    ended(streams)

    assert model.cancelled
    assert runner.count == 0
    assert job_of(store, claim).state is JobState.CANCELLED
    assert result_of(store, claim) is None


def test_an_answer_under_a_lost_lease_is_thrown_away(
    store: Store,
    runner: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    clock: ManualClock,
) -> None:
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    with store.transaction() as tx:
        (expired,) = tx.leases.of_worker("worker-1", 10)
        tx.leases.requeue(expired)
        (second,) = tx.claims.online([claim.lease.shard_id], "worker-2", ["demo"], tx.now(), 30)

    model.answer(next(iter(model.running)), "late")  # the heartbeat has not noticed yet
    other = claim_online(store, "other")
    runner.run(other, clock())
    model.answer(next(iter(model.running)), "other")
    ended(streams)

    assert result_of(store, claim) is None
    with store.transaction() as tx:
        (held,) = tx.leases.renew([second.lease], tx.now(), 30)
        assert held.term == second.lease.term, "the second worker still has it"


def test_an_answer_waits_for_a_database_that_is_away_for_a_moment(
    store: Store,
    runner: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    failures = [DatabaseUnavailable(), DatabaseUnavailable()]
    real = store.transaction

    def flaky(**options):
        if failures:
            raise failures.pop()
        return real(**options)

    monkeypatch.setattr(store, "transaction", flaky)
    monkeypatch.setattr("workers.online.publisher.DATABASE_RETRY_S", 0)
    model.answer(next(iter(model.running)), "HELLO")
    ended(streams)

    assert result_of(store, claim).status_code == 200


@pytest.mark.parametrize("error", [DatabaseUnavailable(), ValueError("the database takes no such text")])
def test_answers_that_cannot_be_recorded_together_are_recorded_in_smaller_parts(
    store: Store,
    model: ScriptedServer,
    models: Models,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """More than two at a time meet a conflict, or one among them is refused."""
    claims = [claim_online(store, f"hello {number}") for number in range(7)]
    with_answers: list[Transaction] = []
    record_answer = transitions.record_answer

    def refused_when_many(tx: Transaction, *what: Any) -> bool:
        with_answers.append(tx)
        if sum(other is tx for other in with_answers) > 2:
            raise error
        return record_answer(tx, *what)

    monkeypatch.setattr(transitions, "record_answer", refused_when_many)
    monkeypatch.setattr("workers.online.publisher.DATABASE_RETRY_S", 0)
    runner = Prepared(store, models, streams, heartbeat)  # type: ignore[arg-type]
    for claim in claims:
        runner.run(claim, clock())
    for asked in list(model.running):
        model.answer(asked, "HELLO")
    runner.start()  # and finds all of them waiting
    for _ in claims:
        ended(streams)
    runner.drain(0)

    assert [result_of(store, claim).status_code for claim in claims] == [200] * 7


def test_an_answer_that_cannot_be_recorded_in_time_leaves_its_lease_to_run_out(
    store: Store,
    runner: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = claim_online(store, "hello")
    runner.run(claim, clock())
    real = store.transaction

    def away(**options):
        clock.advance(25)  # past the trust in the lease
        monkeypatch.setattr(store, "transaction", real)
        raise DatabaseUnavailable

    monkeypatch.setattr(store, "transaction", away)
    monkeypatch.setattr("workers.online.publisher.DATABASE_RETRY_S", 0)
    model.answer(next(iter(model.running)), "HELLO")
    runner.drain(0)

    assert result_of(store, claim) is None
    assert not heartbeat.trusts(claim.lease), "it is not renewed any more"
    assert not [entry for entry in streams.entries if isinstance(entry, End)]


def test_draining_hands_back_what_does_not_finish_in_time(
    store: Store, models: Models, streams: RecordingStreams, heartbeat: Heartbeat, clock: ManualClock
) -> None:
    runner = Prepared(store, models, streams, heartbeat)  # type: ignore[arg-type]
    runner.start()
    claim = claim_online(store, "hello")
    runner.run(claim, clock())

    runner.drain(0)

    with store.snapshot() as tx:
        (shard,) = tx.shards.of_job(claim.job.id, limit=10)
    assert shard.state is ShardState.QUEUED
    assert shard.attempts == 0, "being interrupted is not charged"
    assert not [entry for entry in streams.entries if isinstance(entry, End)]


def test_a_job_that_was_stopped_before_the_claim_is_not_run(
    store: Store, runner: OnlineRunner, model: ScriptedServer, streams: RecordingStreams, clock: ManualClock
) -> None:
    claim = claim_online(store, "hello")
    with store.transaction() as tx:
        transitions.request_stop(tx, claim.job, StopReason.EXPIRED, tx.now())
    stopped = OnlineClaim(claim.lease, job_of(store, claim), claim.body)

    runner.run(stopped, clock())
    ended(streams)

    assert not model.submitted
    assert job_of(store, claim).state is JobState.EXPIRED


# -- requests that workers died with ---------------------------------------------------------------------


@pytest.fixture
def isolation() -> Isolation:
    return Isolation()


@pytest.fixture
def isolating(
    store: Store,
    models: Models,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    isolation: Isolation,
) -> Iterator[OnlineRunner]:
    runner = Prepared(store, models, streams, heartbeat, isolation=isolation)  # type: ignore[arg-type]
    runner.start()
    yield runner
    runner.drain(0)


def suspected(store: Store, text: str) -> OnlineClaim:
    return replace(claim_online(store, text), runs_alone=True)


def is_queued(store: Store, claim: OnlineClaim) -> bool:
    with store.snapshot() as tx:
        [shard] = tx.shards.of_job(claim.job.id, limit=1)
    return shard.state is ShardState.QUEUED


def journalled(store: Store, claim: OnlineClaim) -> tuple[int, ...]:
    with store.snapshot() as tx:
        held = tx.leases.of_worker(claim.lease.worker_id, 10)
    return next(lease.in_flight for lease in held if lease.shard_id == claim.lease.shard_id)


def test_a_suspected_request_waits_for_the_others_and_keeps_new_ones_out(
    store: Store,
    isolating: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    clock: ManualClock,
) -> None:
    isolating.run(claim_online(store, "before"), clock())
    (before,) = model.wait_for(1)
    suspect = suspected(store, "suspect")
    isolating.run(suspect, clock())
    assert isolating.count == 2
    assert journalled(store, suspect) == ()

    model.answer(before.id)
    ended(streams)
    (running,) = model.wait_for(1)
    assert prompt_of(running) == "suspect"
    assert journalled(store, suspect) == (ONLINE_ROW,), "before the engine has it"

    late = claim_online(store, "late")
    isolating.run(late, clock())
    assert is_queued(store, late), "handed back"
    model.answer(running.id)
    ended(streams)
    assert job_of(store, suspect).state is JobState.SUCCEEDED


def test_suspected_requests_run_one_after_the_other(
    store: Store,
    isolating: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    clock: ManualClock,
) -> None:
    claims = [suspected(store, text) for text in ("first", "second")]
    for claim in claims:
        isolating.run(claim, clock())

    for text in ("first", "second"):
        (running,) = model.wait_for(1)
        assert prompt_of(running) == text
        assert len(model.running) == 1
        model.answer(running.id)
        ended(streams)
    assert [job_of(store, claim).state for claim in claims] == [JobState.SUCCEEDED] * 2


def test_a_suspected_request_has_the_worker_to_itself_until_its_answer_is_recorded(
    store: Store,
    isolating: OnlineRunner,
    isolation: Isolation,
    model: ScriptedServer,
    streams: RecordingStreams,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a crash that another request causes would be put down to this one, journalled as alone."""
    others_got_in: list[bool] = []
    record_answer = transitions.record_answer

    def record(*arguments: Any) -> bool:
        others_got_in.append(isolation.enter(object()))
        return record_answer(*arguments)

    monkeypatch.setattr(transitions, "record_answer", record)
    isolating.run(suspected(store, "suspect"), clock())
    (running,) = model.wait_for(1)
    model.answer(running.id)
    ended(streams)

    assert others_got_in == [False]
    assert isolation.enter(object())


def test_a_suspected_request_that_waits_can_be_stopped(
    store: Store,
    isolating: OnlineRunner,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    isolation: Isolation,
    clock: ManualClock,
) -> None:
    other = object()
    assert isolation.enter(other)
    claim = suspected(store, "suspect")
    isolating.run(claim, clock())
    with store.transaction() as tx:
        assert transitions.request_stop(tx, tx.jobs.fetch(claim.job.id), StopReason.CANCELLED, tx.now())

    heartbeat.beat()
    ended(streams)

    assert job_of(store, claim).state is JobState.CANCELLED
    assert isolating.count == 0
    isolation.leave(other)


def test_a_suspected_request_that_waits_is_handed_back_by_a_drain(
    store: Store, isolating: OnlineRunner, isolation: Isolation, clock: ManualClock
) -> None:
    assert isolation.enter(object())
    claim = suspected(store, "suspect")
    isolating.run(claim, clock())

    isolating.drain(0)

    assert is_queued(store, claim)
    assert not isolation.is_held


@pytest.mark.parametrize("how", ["stopped", "lease lost"])
@pytest.mark.parametrize("is_suspect", [False, True], ids=["unsuspected", "suspected"])
def test_a_cancelled_request_counts_as_inside_until_the_engine_has_taken_it_out(
    store: Store,
    isolating: OnlineRunner,
    model: ScriptedServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    isolation: Isolation,
    clock: ManualClock,
    how: str,
    is_suspect: bool,
) -> None:
    """In a step that hangs it stays: the next suspect would be taken to have hung alone."""
    claim = suspected(store, "hangs") if is_suspect else claim_online(store, "hangs")
    isolating.run(claim, clock())
    model.wait_for(1)
    model.is_stuck = True
    with store.transaction() as tx:
        if how == "stopped":
            assert transitions.request_stop(tx, claim.job, StopReason.CANCELLED, tx.now())
        else:
            [lost] = tx.leases.of_worker(claim.lease.worker_id, 10)
            assert tx.leases.requeue(lost)
    heartbeat.beat()
    if how == "stopped":
        ended(streams)

    next_suspect = object()
    assert not isolation.enter_alone(next_suspect)
    model.step_ends()
    assert isolation.enter_alone(next_suspect)


def test_a_suspected_request_that_cannot_be_journalled_is_answered_and_keeps_no_other_out(
    store: Store,
    isolating: OnlineRunner,
    streams: RecordingStreams,
    isolation: Isolation,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: Any) -> bool:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(DeadLetters, "journal", broken)
    claim = suspected(store, "suspect")
    isolating.run(claim, clock())
    ended(streams)

    assert result_of(store, claim).status_code == 500
    assert isolation.enter(object())
    assert isolating.is_alive


def test_a_suspected_request_that_cannot_be_handed_back_is_left_to_its_lease_and_keeps_no_other_out(
    store: Store,
    isolating: OnlineRunner,
    model: ScriptedServer,
    heartbeat: Heartbeat,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_broken = threading.Event()

    def broken(*arguments: Any) -> bool:
        model.is_busy = False
        has_broken.set()
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(Leases, "hand_back", broken)
    model.is_busy = True
    claim = suspected(store, "handed back")
    isolating.run(claim, clock())
    assert has_broken.wait(10)

    isolating.run(suspected(store, "next"), clock())
    [running] = model.wait_for(1)
    assert prompt_of(running) == "next"
    assert not heartbeat.trusts(claim.lease), "it is not renewed any more"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_whose_thread_for_suspected_requests_has_ended_is_not_alive(
    store: Store, isolating: OnlineRunner, isolation: Isolation, clock: ManualClock, monkeypatch
) -> None:
    assert isolating.is_alive

    def broken(*arguments: Any) -> bool:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(isolation, "wait_to_enter_alone", broken)
    isolating.run(suspected(store, "suspect"), clock())

    wait_until(lambda: not isolating.is_alive)


def test_times_begin_with_the_clients_submit(
    store: Store, runner: OnlineRunner, model: ScriptedServer, streams: RecordingStreams
) -> None:
    claim = replace(claim_online(store, "hello"), waited_s=120.0)
    runner.run(claim, time.monotonic())
    (inference,) = model.running.values()
    model.emit(inference.id, "HEL", token_ids=[1])
    model.emit(inference.id, "LO", token_ids=[2])
    model.answer(inference.id, "HELLO")
    ended(streams)

    ((label, times),) = runner.times
    assert label == (claim.job.model, claim.job.priority.value)
    for histogram in (times.first_token_s, times.request_s):
        assert sum(histogram.counts) == 1
        assert histogram.sum >= 120
