"""Online requests: live text first, the answer committed, then announced; and never a second answer."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nightshift.broker.token_streams import Delta
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import JobState, OnlineClaim, ShardState
from nightshift.lifecycle import transitions
from nightshift.lifecycle.recovery import ONLINE_ROW
from nightshift.store import Transaction
from nightshift.store.shards.dead_letters import DeadLetters
from nightshift.store.shards.leases import Leases
from tests.unit.workers.online.conftest import Online
from tests.unit.workers.scripted import prompt_of
from tests.unit.workers.shard.helpers import wait_until
from workers.serving.inference import Progress, refusal


def broken(*arguments: Any) -> Any:
    raise RuntimeError("unforeseen")


def test_text_is_streamed_and_the_answer_is_there_when_the_stream_ends(online: Online) -> None:
    claim = online.run()
    for text in ("HEL", "LO"):
        online.model.emit(online.running.id, text)
    online.answer()
    online.ended()

    assert online.streams.text(claim.lease.shard_id) == "HELLO"
    offsets = [entry.data["offset"] for entry in online.streams.entries if isinstance(entry, Delta)]
    assert offsets == [0, 3], "each says where in the answer it begins"
    assert online.result(claim).body["choices"][0]["message"]["content"] == "HELLO"
    assert (online.job(claim).state, online.job(claim).counts.succeeded) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize("streams_answer", [False, True])
def test_log_probabilities_are_published_where_a_client_reads_them(
    online: Online, streams_answer: bool
) -> None:
    claim = online.claim()
    online.run(replace(claim, body=claim.body | {"logprobs": True, "stream": streams_answer}))
    for text in ("HEL", ""):  # a token that is no whole character has no text yet
        online.running.listener(Progress(text, logprobs={"content": [{"token": text}]}))
    online.answer("HEL")
    online.ended()

    published = [entry.data.get("logprobs") for entry in online.streams.entries if isinstance(entry, Delta)]
    tokens = [{"content": [{"token": text}]} for text in ("HEL", "")]
    assert published == (tokens if streams_answer else [None])
    assert online.streams.text(claim.lease.shard_id) == "HEL"


def refuse(online: Online) -> None:
    online.model.refuses = "hello"


def break_submission(online: Online) -> None:
    online.model.submit = broken  # type: ignore[method-assign]


NOT_FETCHED = InvalidRequest("'https://a.example/b.png' was not fetched.", code="image_not_fetched")


@pytest.mark.parametrize(
    ("before", "failure", "status", "code"),
    [
        (refuse, (), 400, "context_length_exceeded"),
        (break_submission, (), 500, "model_error"),
        (lambda online: None, ("the logits are not finite",), 500, "model_error"),
        (lambda online: None, (NOT_FETCHED.message, refusal(NOT_FETCHED)), 400, "image_not_fetched"),
    ],
    ids=["can never run", "its submission breaks", "the engine fails on it", "its image is not fetched"],
)
def test_a_request_that_fails_is_answered_with_the_reason_and_does_not_stay_open(
    online: Online, before: Callable[[Online], None], failure: tuple[Any, ...], status: int, code: str
) -> None:
    before(online)
    claim = online.run()
    if failure:
        online.model.fail(online.running.id, *failure)
    online.ended()

    result = online.result(claim)
    assert (result.status_code, result.body["error"]["code"]) == (status, code)
    assert online.job(claim).state is JobState.FAILED
    assert online.runner.count == 0


def test_a_stop_order_frees_the_place_and_ends_the_job(online: Online) -> None:
    claim = online.run()
    online.cancel(claim)
    online.ended()

    assert online.model.cancelled
    assert online.runner.count == 0
    assert online.job(claim).state is JobState.CANCELLED
    assert online.result(claim) is None


def test_a_job_that_was_stopped_before_the_claim_is_not_run(online: Online) -> None:
    claim = online.claim()
    online.cancel(claim)
    online.run(replace(claim, job=online.job(claim)))
    online.ended()

    assert not online.model.submitted
    assert online.job(claim).state is JobState.CANCELLED


def test_an_answer_under_a_lost_lease_is_thrown_away(online: Online) -> None:
    claim = online.run()
    online.expire(claim)
    with online.store.transaction() as tx:
        (second,) = tx.claims.online([claim.lease.shard_id], "worker-2", ["demo"], tx.now(), 30)
    online.answer("late")  # the heartbeat has not noticed yet
    online.run("other")
    online.answer("other")
    online.ended()

    assert online.result(claim) is None
    with online.store.transaction() as tx:
        (held,) = tx.leases.renew([second.lease], tx.now(), 30)
        assert held.term == second.lease.term, "the second worker still has it"


def test_an_answer_waits_for_a_database_that_is_away_for_a_moment(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = online.run()
    failures, transaction = [DatabaseUnavailable(), DatabaseUnavailable()], online.store.transaction

    def flaky(**options: Any) -> Any:
        if failures:
            raise failures.pop()
        return transaction(**options)

    monkeypatch.setattr(online.store, "transaction", flaky)
    online.answer()
    online.ended()

    assert online.result(claim).status_code == 200


@pytest.mark.parametrize("error", [DatabaseUnavailable(), ValueError("the database takes no such text")])
def test_answers_that_cannot_be_recorded_together_are_recorded_in_smaller_parts(
    online: Online, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """More than two at a time meet a conflict, or one among them is refused."""
    with_answers: list[Transaction] = []
    record_answer = transitions.record_answer
    may_record = threading.Event()

    def refused_when_many(tx: Transaction, *answer: Any) -> bool:
        assert may_record.wait(10)
        with_answers.append(tx)
        if sum(other is tx for other in with_answers) > 2:
            raise error
        return record_answer(tx, *answer)

    monkeypatch.setattr(transitions, "record_answer", refused_when_many)
    claims = [online.run(f"hello {number}") for number in range(8)]
    for inference in online.model.wait_for(8):
        online.model.answer(inference.id)
    may_record.set()  # the publisher then finds all but the first of them waiting
    for _ in claims:
        online.ended()

    assert [online.result(claim).status_code for claim in claims] == [200] * 8


def test_an_answer_that_cannot_be_recorded_in_time_leaves_its_lease_to_run_out(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, transaction = online.run(), online.store.transaction

    def away(**options: Any) -> None:
        online.clock.advance(25)  # past the trust in the lease
        monkeypatch.setattr(online.store, "transaction", transaction)
        raise DatabaseUnavailable

    monkeypatch.setattr(online.store, "transaction", away)
    online.answer()
    online.runner.drain(0)

    assert online.result(claim) is None
    assert not online.heartbeat.trusts(claim.lease), "it is not renewed any more"
    assert online.told_of_ends == []


def test_draining_hands_back_what_does_not_finish_in_time(online: Online) -> None:
    claim = online.run()
    online.runner.drain(0)

    with online.store.snapshot() as tx:
        (shard,) = tx.shards.of_job(claim.job.id, limit=10)
    assert (shard.state, shard.attempts) == (ShardState.QUEUED, 0), "being interrupted is not charged"
    assert online.told_of_ends == []


def test_times_begin_with_the_clients_submit(online: Online) -> None:
    claim = replace(online.claim(), waited_s=120.0)
    online.runner.run(claim, time.monotonic())
    for token in (1, 2):
        online.model.emit(online.running.id, "X", token_ids=[token])
    online.answer()
    online.ended()

    ((label, times),) = online.runner.times
    assert label == (claim.job.model, claim.job.priority.value)
    for histogram in (times.first_token_s, times.request_s):
        assert (sum(histogram.counts), histogram.sum >= 120) == (1, True)


# -- requests that workers died with


def journalled(online: Online, claim: OnlineClaim) -> tuple[int, ...]:
    with online.store.snapshot() as tx:
        held = tx.leases.of_worker(claim.lease.worker_id, 10)
    return next(lease.in_flight for lease in held if lease.shard_id == claim.lease.shard_id)


def test_a_suspected_request_waits_for_the_others_and_keeps_new_ones_out(online: Online) -> None:
    online.run("before")
    before = online.running
    suspect = online.run("suspect", is_suspect=True)
    assert online.runner.count == 2
    assert journalled(online, suspect) == ()

    online.model.answer(before.id)
    online.ended()
    assert prompt_of(online.running) == "suspect"
    assert journalled(online, suspect) == (ONLINE_ROW,), "before the engine has it"

    late = online.run("late")
    assert online.shard_state(late) is ShardState.QUEUED, "handed back"
    online.answer()
    online.ended()
    assert online.job(suspect).state is JobState.SUCCEEDED


def test_suspected_requests_run_one_after_the_other(online: Online) -> None:
    claims = [online.run(text, is_suspect=True) for text in ("first", "second")]
    for text in ("first", "second"):
        assert prompt_of(online.running) == text
        online.answer()
        online.ended()
    assert [online.job(claim).state for claim in claims] == [JobState.SUCCEEDED] * 2


def test_a_suspected_request_has_the_worker_to_itself_until_its_answer_is_recorded(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash that another request causes would be put down to this one, journalled as alone."""
    others_got_in: list[bool] = []
    record_answer = transitions.record_answer

    def record(*arguments: Any) -> bool:
        others_got_in.append(online.isolation.enter(object()))
        return record_answer(*arguments)

    monkeypatch.setattr(transitions, "record_answer", record)
    online.run(is_suspect=True)
    online.answer()
    online.ended()

    assert others_got_in == [False]
    assert online.isolation.enter(object())


def test_a_suspected_request_that_waits_can_be_stopped(online: Online) -> None:
    other = object()
    assert online.isolation.enter(other)
    claim = online.run(is_suspect=True)
    online.cancel(claim)
    online.ended()

    assert online.job(claim).state is JobState.CANCELLED
    assert online.runner.count == 0
    online.isolation.leave(other)


def test_a_suspected_request_that_waits_is_handed_back_by_a_drain(online: Online) -> None:
    assert online.isolation.enter(object())
    claim = online.run(is_suspect=True)
    online.runner.drain(0)

    assert online.shard_state(claim) is ShardState.QUEUED
    assert not online.isolation.is_held


@pytest.mark.parametrize("how", [Online.cancel, Online.lose])
@pytest.mark.parametrize("is_suspect", [False, True], ids=["unsuspected", "suspected"])
def test_a_cancelled_request_counts_as_inside_until_the_engine_has_taken_it_out(
    online: Online, how: Callable[[Online, OnlineClaim], None], is_suspect: bool
) -> None:
    """Stays in a step that hangs: the next suspect would be taken to have hung alone."""
    claim = online.run("hangs", is_suspect=is_suspect)
    online.model.wait_for(1)
    online.model.is_stuck = True
    how(online, claim)
    if how is Online.cancel:
        online.ended()

    next_suspect = object()
    assert not online.isolation.enter_alone(next_suspect)
    online.model.step_ends()
    assert online.isolation.enter_alone(next_suspect)


def test_a_suspected_request_that_cannot_be_journalled_is_answered_and_keeps_no_other_out(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeadLetters, "journal", broken)
    claim = online.run(is_suspect=True)
    online.ended()

    assert online.result(claim).status_code == 500
    assert online.isolation.enter(object())
    assert online.runner.is_alive


def test_a_suspected_request_that_cannot_be_handed_back_is_left_to_its_lease_and_keeps_no_other_out(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_broken = threading.Event()

    def breaks(*arguments: Any) -> bool:
        online.model.is_busy = False
        has_broken.set()
        return broken()

    monkeypatch.setattr(Leases, "hand_back", breaks)
    online.model.is_busy = True
    claim = online.run("handed back", is_suspect=True)
    assert has_broken.wait(10)

    online.run("next", is_suspect=True)
    assert prompt_of(online.running) == "next"
    assert not online.heartbeat.trusts(claim.lease), "it is not renewed any more"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_whose_thread_for_suspected_requests_has_ended_is_not_alive(online: Online) -> None:
    assert online.runner.is_alive
    online.isolation.wait_to_enter_alone = broken  # type: ignore[method-assign]
    online.run(is_suspect=True)

    wait_until(lambda: not online.runner.is_alive)
