"""The rows of a shard: each gets one result, whatever it says and however it ends."""

import json
from dataclasses import replace
from functools import partial

from nightshift.bulk.results.row_results import RowResult
from nightshift.errors import InvalidRequest
from nightshift.jobs import ShardState
from nightshift.jobs.shard import CrashHistory
from tests.unit.workers.scripted import ManualClock, chat_body, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import (
    CONFIG,
    INPUT,
    batch_line,
    by_id,
    finished,
    results_of,
    shard_of,
    wait_until,
)
from workers.serving.inference import refusal
from workers.shard import runner
from workers.shard.ledger import Ledger


def test_every_row_is_answered_and_the_shard_is_done(store, objects, model, write_input, run) -> None:
    model.echo = True
    write_input([batch_line(n) for n in range(10)])
    job = plan_bulk(store, INPUT)

    finished(run(claim_bulk(store)))

    results = by_id(results_of(store, objects, job))
    assert {id: content(result) for id, result in results.items()} == {f"r{n}": f"ROW {n}" for n in range(10)}
    shard = shard_of(store, job)
    assert (shard.state, shard.rows_done, shard.rows_total) == (ShardState.DONE, 10, 10)
    with store.snapshot() as tx:
        counted = tx.jobs.fetch(job.id)
    assert (counted.counts.succeeded, counted.counts.failed) == (10, 0)
    assert counted.usage.completion_tokens == 20


def test_bad_rows_get_their_error_and_the_others_run(store, objects, model, write_input, run) -> None:
    model.echo = True
    model.refuses = "too long"
    write_input(
        [
            batch_line(0),
            "{not json",
            batch_line(2, "too long"),
            batch_line(3, body={"model": "demo", "messages": []}),
            batch_line(4, body=chat_body("x") | {"model": "another"}),
            batch_line(5),
        ]
    )
    job = plan_bulk(store, INPUT)

    finished(run(claim_bulk(store)))

    results = {result.row: result for result in results_of(store, objects, job)}
    assert sorted(results) == list(range(6))
    assert [row for row, result in results.items() if result.succeeded] == [0, 5]
    codes = {row: results[row].body["error"]["code"] for row in (1, 2, 3, 4)}
    assert codes[2] == "context_length_exceeded"
    assert codes[4] == "mismatched_model"
    assert results[3].body["error"]["param"] == "messages"
    assert shard_of(store, job).state is ShardState.DONE


def test_a_shard_whose_last_rows_need_no_engine_ends_without_waiting_for_a_checkpoint(
    store, objects, model, write_input, run
) -> None:
    model.refuses = "too long"
    write_input([batch_line(0, "too long")])
    job = plan_bulk(store, INPUT)

    finished(run(claim_bulk(store), replace(CONFIG, segment_interval_s=3600.0)))

    assert [result.status_code for result in results_of(store, objects, job)] == [400]


def test_a_row_the_engine_fails_on_thrice_is_a_failed_row_and_nothing_more(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0), batch_line(1)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    first, second = model.wait_for(2)

    model.answer(second.id)
    for _ in range(3):
        (failing,) = model.wait_for(1)
        assert failing.identity == first.identity
        model.fail(failing.id, "the logits are not finite")
    finished(runner)

    results = by_id(results_of(store, objects, job))
    assert results["r0"].status_code == 500
    assert results["r1"].succeeded


def test_a_row_whose_image_is_not_fetched_is_tried_again_before_that_is_its_error(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    error = InvalidRequest("'https://a.example/b.png' was not fetched.", code="image_not_fetched")

    for _ in range(3):
        (failing,) = model.wait_for(1)
        model.fail(failing.id, error.message, refusal(error))
    finished(runner)

    (result,) = results_of(store, objects, job)
    assert result.status_code == 400
    assert json.loads(result.body_text)["error"]["code"] == "image_not_fetched"


def test_a_row_that_takes_too_long_is_a_failed_row_and_leaves_the_engine(
    store, objects, model, write_input, run, monkeypatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(runner, "Ledger", partial(Ledger, clock_s=clock))
    write_input([batch_line(number) for number in range(2)])
    job = plan_bulk(store, INPUT, row_timeout_s=30)
    running = run(claim_bulk(store), replace(CONFIG, segment_rows=1))
    slow, quick = model.wait_for(2)

    clock.advance(29.5)
    model.answer(quick.id)
    wait_until(lambda: len(results_of(store, objects, job)) == 1)
    assert model.cancelled == []
    clock.advance(0.5)
    finished(running)

    assert model.cancelled == [slow.id]
    results = by_id(results_of(store, objects, job))
    assert results["r1"].status_code == 200
    assert (results["r0"].status_code, results["r0"].body["error"]["code"]) == (408, "timed_out")
    assert "30 s" in results["r0"].body["error"]["message"]
    assert shard_of(store, job).state is ShardState.DONE


def test_every_result_has_the_columns_that_are_kept(
    store, objects, model, write_input, run, monkeypatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(runner, "Ledger", partial(Ledger, clock_s=clock))
    model.refuses = "too long"
    write_input(
        [
            batch_line(0, doc="good"),
            batch_line(1, doc="slow"),
            batch_line(2, doc="broken off"),
            "{not json",
            batch_line(4, "too long", doc="refused"),
            batch_line(5, body={"model": "demo", "messages": []}, doc="invalid"),
            batch_line(6, body=chat_body("x") | {"model": "another"}, doc="another model"),
            batch_line(7),
        ]
    )
    job = plan_bulk(store, INPUT, keep_columns=("doc",), row_timeout_s=30)
    running = run(claim_bulk(store))

    good, slow, broken, last = model.wait_for(4)
    model.answer(good.id)
    model.answer(last.id)
    for _ in range(3):
        [again] = [each for each in model.wait_for(2) if each.identity == broken.identity]
        model.fail(again.id, "the logits are not finite")
    wait_until(lambda: len(model.running) == 1)
    clock.advance(31)
    finished(running)

    assert model.cancelled == [slow.id]
    kept = {each.row: json.loads(each.kept) for each in results_of(store, objects, job)}
    docs = ["good", "slow", "broken off", None, "refused", "invalid", "another model", None]
    assert kept == {row: {"doc": doc} for row, doc in enumerate(docs)} | {3: None}


def test_a_row_that_is_no_longer_run_has_the_columns_that_are_kept(
    store, objects, model, write_input, run
) -> None:
    model.echo = True
    write_input([batch_line(0, doc="poison"), batch_line(1, doc="good")])
    job = plan_bulk(store, INPUT, keep_columns="all")
    claim = claim_bulk(store)
    history = CrashHistory(crashes=1, dead=frozenset({0}))

    finished(run(replace(claim, crash_history=history)))

    results = {each.row: each for each in results_of(store, objects, job)}
    assert results[0].body["error"]["code"] == "row_crashes_workers"
    assert [json.loads(results[row].kept)["doc"] for row in (0, 1)] == ["poison", "good"]


def test_rows_tell_the_engine_their_job(store, model, write_input, run) -> None:
    write_input([batch_line(number) for number in range(2)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    inferences = model.wait_for(2)
    for inference in inferences:
        model.answer(inference.id)
    finished(runner)

    assert [inference.group for inference in inferences] == [job.id, job.id]


def test_no_more_rows_are_in_flight_than_allowed(store, model, write_input, run) -> None:
    write_input([batch_line(n) for n in range(20)])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, rows_in_flight_max=3))

    submitted = 0
    while submitted < 20:
        running = model.wait_for(min(3, 20 - submitted))
        assert len(running) <= 3
        for inference in running:
            model.answer(inference.id)
        submitted += len(running)
    finished(runner)


def test_the_next_worker_runs_only_what_no_listed_segment_has(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(6)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store), replace(CONFIG, segment_rows=2))
    for inference in model.wait_for(6)[:4]:
        model.answer(inference.id)
    wait_until(lambda: shard_of(store, job).rows_done == 4)
    first.lease_lost()
    finished(first)
    with store.transaction() as tx:
        (expired,) = tx.leases.of_worker("worker-1", 10)
        tx.leases.requeue(expired)

    model.running.clear()
    model.submitted.clear()
    model.echo = True
    finished(run(claim_bulk(store, "worker-2")))

    assert len(model.submitted) == 2, "two rows were left"
    assert len(by_id(results_of(store, objects, job))) == 6
    assert shard_of(store, job).state is ShardState.DONE


def test_a_row_has_the_same_identity_and_seed_at_every_attempt(store, model, write_input, run) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    (before,) = model.wait_for(1)
    first.drain()
    finished(first)

    run(claim_bulk(store, "worker-2"))
    (after,) = model.wait_for(1)

    assert before.id != after.id, "the engine must be able to tell the attempts apart"
    assert before.identity == after.identity
    assert before.identity.seed == after.identity.seed


def test_a_busy_model_is_offered_the_row_again(store, model, write_input, run) -> None:
    model.is_busy, model.echo = True, True
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    model.is_busy = False
    finished(runner)

    assert shard_of(store, job).state is ShardState.DONE


def content(result: RowResult) -> str:
    return result.body["choices"][0]["message"]["content"]


def test_an_encoder_has_more_rows_at_once_but_of_a_shard_that_lost_a_worker(store) -> None:
    config = replace(CONFIG, rows_in_flight_max=3, encoder_rows_in_flight_max=50)
    plan_bulk(store, INPUT, shards=2)
    plan_bulk(store, INPUT, endpoint="/v1/embeddings")
    chat, _, embeddings = (claim_bulk(store) for _ in range(3))
    watched = replace(embeddings, crash_history=CrashHistory(crashes=1))

    assert watched.crash_history.is_watched
    assert [config.rows_in_flight(claim) for claim in (chat, embeddings, watched)] == [3, 50, 3]
    assert CONFIG.rows_in_flight(embeddings) == CONFIG.rows_in_flight_max
