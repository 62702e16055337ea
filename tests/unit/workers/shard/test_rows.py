"""The rows of a shard: each gets one result, whatever it says and however it ends."""

import json
from dataclasses import replace
from functools import partial

import pytest

from nightshift.bulk.results.row_results import RowResult
from nightshift.errors import InvalidRequest
from nightshift.jobs import CrashHistory, ShardState
from tests.unit.workers.scripted import ManualClock, chat_body, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import CONFIG, INPUT, Ground, batch_line, finished, wait_until
from workers.serving.inference import refusal
from workers.shard import runner as running
from workers.shard.ledger import Ledger


@pytest.fixture
def row_clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock by which rows in flight grow old."""
    clock = ManualClock()
    monkeypatch.setattr(running, "Ledger", partial(Ledger, clock_s=clock))
    return clock


def content(result: RowResult) -> str:
    return result.body["choices"][0]["message"]["content"]


def test_every_row_is_answered_and_the_shard_is_done(ground: Ground) -> None:
    ground.model.echo = True
    finished(ground.run(10))

    assert {id: content(result) for id, result in ground.by_id.items()} == {
        f"r{n}": f"ROW {n}" for n in range(10)
    }
    shard, counted = ground.shard, ground.recorded
    assert (shard.state, shard.rows_done, shard.rows_total) == (ShardState.DONE, 10, 10)
    assert (counted.counts.succeeded, counted.counts.failed) == (10, 0)
    assert counted.usage.completion_tokens == 20
    assert {inference.group for inference in ground.model.submitted} == {counted.id}


def test_every_result_has_the_columns_that_are_kept(ground: Ground, row_clock: ManualClock) -> None:
    model = ground.model
    model.refuses = "too long"
    lines = [
        batch_line(0, doc="good"),
        batch_line(1, doc="slow"),
        batch_line(2, doc="broken off"),
        "{not json",
        batch_line(4, "too long", doc="refused"),
        batch_line(5, body={"model": "demo", "messages": []}, doc="invalid"),
        batch_line(6, body=chat_body("x") | {"model": "another"}, doc="another model"),
        batch_line(7),
    ]
    runner = ground.run(lines, spec={"keep_columns": ("doc",), "row_timeout_s": 30})
    good, slow, broken, last = ground.begun(4)
    ground.answer(good, last)
    for _ in range(3):
        [again] = [inference for inference in ground.begun(2) if inference.identity == broken.identity]
        model.fail(again.id, "the logits are not finite")
    wait_until(lambda: len(model.running) == 1)
    row_clock.advance(31)
    finished(runner)

    assert model.cancelled == [slow.id]
    results = {result.row: result for result in ground.results}
    docs = ["good", "slow", "broken off", None, "refused", "invalid", "another model", None]
    kept = {row: json.loads(result.kept or "") for row, result in results.items()}
    assert kept == {row: {"doc": doc} for row, doc in enumerate(docs)} | {3: None}
    errors = {row: result.body["error"] for row, result in results.items() if not result.succeeded}
    assert sorted(errors) == [1, 2, 3, 4, 5, 6]
    assert (results[2].status_code, errors[4]["code"]) == (500, "context_length_exceeded")
    assert (errors[5]["param"], errors[6]["code"]) == ("messages", "mismatched_model")
    assert ground.state is ShardState.DONE


def test_a_shard_whose_last_rows_need_no_engine_ends_without_waiting_for_a_checkpoint(
    ground: Ground,
) -> None:
    ground.model.refuses = "too long"
    finished(ground.run([batch_line(0, "too long")], replace(CONFIG, segment_interval_s=3600.0)))

    assert [result.status_code for result in ground.results] == [400]


def test_a_row_whose_image_is_not_fetched_is_tried_again_before_that_is_its_error(ground: Ground) -> None:
    runner = ground.run(1)
    error = InvalidRequest("'https://a.example/b.png' was not fetched.", code="image_not_fetched")
    for _ in range(3):
        (failing,) = ground.begun(1)
        ground.model.fail(failing.id, error.message, refusal(error))
    finished(runner)

    (result,) = ground.results
    assert (result.status_code, result.body["error"]["code"]) == (400, "image_not_fetched")


def test_a_row_that_takes_too_long_is_a_failed_row_and_leaves_the_engine(
    ground: Ground, row_clock: ManualClock
) -> None:
    runner = ground.run(2, replace(CONFIG, segment_rows=1), {"row_timeout_s": 30})
    slow, quick = ground.begun(2)

    row_clock.advance(29.5)
    ground.answer(quick)
    wait_until(lambda: len(ground.results) == 1)
    assert ground.model.cancelled == []
    row_clock.advance(0.5)
    finished(runner)

    assert ground.model.cancelled == [slow.id]
    results = ground.by_id
    assert results["r1"].status_code == 200
    assert (results["r0"].status_code, results["r0"].body["error"]["code"]) == (408, "timed_out")
    assert "30 s" in results["r0"].body["error"]["message"]


def test_a_row_that_is_no_longer_run_has_the_columns_that_are_kept(ground: Ground) -> None:
    ground.model.echo = True
    ground.plan([batch_line(0, doc="poison"), batch_line(1, doc="good")], keep_columns="all")
    history = CrashHistory(crashes=1, dead=frozenset({0}))
    finished(ground.lease(claim=replace(claim_bulk(ground.store), crash_history=history)))

    results = ground.by_id
    assert (results["r0"].status_code, results["r0"].body["error"]["code"]) == (500, "row_crashes_workers")
    assert [json.loads(results[id].kept or "")["doc"] for id in ("r0", "r1")] == ["poison", "good"]


def test_the_next_worker_runs_only_what_no_listed_segment_has(ground: Ground) -> None:
    first = ground.run(6, replace(CONFIG, segment_rows=2))
    ground.answer(*ground.begun(6)[:4])
    wait_until(lambda: ground.shard.rows_done == 4)
    first.lease_lost()
    finished(first)
    with ground.store.transaction() as tx:
        (expired,) = tx.leases.of_worker("worker-1", 10)
        tx.leases.requeue(expired)

    ground.model.running.clear()
    ground.model.submitted.clear()
    ground.model.echo = True
    finished(ground.lease(worker_id="worker-2"))

    assert len(ground.model.submitted) == 2, "two rows were left"
    assert len(ground.by_id) == 6
    assert ground.state is ShardState.DONE


def test_a_row_has_the_same_identity_and_seed_at_every_attempt(ground: Ground) -> None:
    first = ground.run(1)
    (before,) = ground.begun(1)
    ground.drain(first)
    ground.lease(worker_id="worker-2")
    (after,) = ground.begun(1)

    assert before.id != after.id, "the engine must be able to tell the attempts apart"
    assert (before.identity, before.identity.seed) == (after.identity, after.identity.seed)


def test_a_busy_model_is_offered_the_row_again(ground: Ground) -> None:
    ground.model.is_busy, ground.model.echo = True, True
    runner = ground.run(1)
    ground.model.is_busy = False
    finished(runner)

    assert ground.state is ShardState.DONE


def test_rows_that_are_too_large_together_run_one_after_the_other(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "CHARS_IN_FLIGHT_MAX", 1)
    runner = ground.run(3)
    for _ in range(3):
        (alone,) = ground.begun(1)
        ground.answer(alone)
    finished(runner)
    assert len(ground.results) == 3


def test_an_encoder_has_more_rows_at_once_but_of_a_shard_that_lost_a_worker(ground: Ground) -> None:
    config = replace(CONFIG, rows_in_flight_max=3, encoder_rows_in_flight_max=50)
    plan_bulk(ground.store, INPUT, shards=2)
    plan_bulk(ground.store, INPUT, endpoint="/v1/embeddings")
    chat, _, embeddings = (claim_bulk(ground.store) for _ in range(3))
    watched = replace(embeddings, crash_history=CrashHistory(crashes=1))

    assert watched.crash_history.is_watched
    assert [config.rows_in_flight(claim) for claim in (chat, embeddings, watched)] == [3, 50, 3]
    assert CONFIG.rows_in_flight(embeddings) == CONFIG.rows_in_flight_max
