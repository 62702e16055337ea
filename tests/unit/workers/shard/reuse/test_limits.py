"""What sharing answers must not do: take stale ones, hold much, hang, or fail for want of an earlier run."""

import logging
import threading
from collections import deque
from dataclasses import replace

import pytest

from nightshift.bulk.results.earlier_results import EarlierResults
from nightshift.bulk.results.row_digests import RowDigests
from nightshift.errors import StorageDenied
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import ShardState, StopReason
from nightshift.objectstore import DirectoryStore
from nightshift.objectstore.objects import ObjectTooLarge
from tests.unit.workers.scripted import chat_body, claim_bulk, plan_bulk, prompt_of
from tests.unit.workers.shard.helpers import (
    CONFIG,
    INPUT,
    batch_line,
    finished,
    shard_of,
    wait_until,
)
from tests.unit.workers.shard.reuse.reusing import (
    numbered,
)
from workers.shard.reader import Reader

MODEL = Model(id="demo", kind=ModelKind.DECODER, context_length=128, revision="r1")


def test_other_orders_of_a_schemas_properties_have_other_digests() -> None:
    def body(*names: str) -> dict:
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
        format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        return chat_body("x", response_format=format, temperature=0)

    digests = RowDigests("default", "/v1/chat/completions", MODEL)
    assert digests.digest_of(body("reasoning", "answer")) != digests.digest_of(body("answer", "reasoning"))


@pytest.mark.parametrize("order", ["drain", "stop"])
def test_a_twins_answer_after_the_last_checkpoint_breaks_nothing(
    store, objects, model, write_input, run, monkeypatch, caplog, order
) -> None:
    write_input([batch_line(0, "same"), batch_line(1, "own")])
    plan_bulk(store, INPUT, shards=2)
    run(claim_bulk(store))
    model.wait_for(2)  # "same", "own" of the first shard
    waiter = run(claim_bulk(store))
    wait_until(lambda: len(waiter._rows._waiting) == 2)
    puts, go = threading.Event(), threading.Event()
    put = DirectoryStore.put

    def slow(objects, key, data, **options):
        if key.startswith("segments/") and int(key.split("/")[3]) == waiter.claim.shard.shard_no:
            puts.set()
            assert go.wait(10)
        return put(objects, key, data, **options)

    monkeypatch.setattr(DirectoryStore, "put", slow)
    own = next(each for each in model.running.values() if prompt_of(each) == "own")
    model.answer(own.id)  # the waiter has a result to write
    assert puts.wait(10)
    if order == "drain":
        waiter.drain()
    else:
        waiter.stop_requested(StopReason.CANCELLED)
    wait_until(lambda: not waiter._ledger._is_open)
    same = next(each for each in model.running.values() if prompt_of(each) == "same")
    with caplog.at_level(logging.INFO):
        model.answer(same.id)
        wait_until(lambda: not waiter._rows._once._running)  # the waiter has been told
        go.set()
        finished(waiter)
    assert [record.getMessage() for record in caplog.records if "broke" in record.getMessage()] == []
    ended = [record for record in caplog.records if getattr(record, "action", "") == "shard_ended"]
    assert all("broke" not in record.outcome for record in ended), [record.outcome for record in ended]


def test_what_is_remembered_of_a_row_is_counted(
    store, objects, model, write_input, run, dependencies
) -> None:
    model.echo = True
    config = replace(CONFIG, line_bytes_max=2_000_000)
    write_input([batch_line(n, f"text {n}", doc="x" * 1_000_000) for n in range(20)])
    plan_bulk(store, INPUT, keep_columns=("doc",))
    finished(run(claim_bulk(store), config))

    once = dependencies.once
    held = sum(len(result.kept or "") for result in once._known.values())
    assert held <= once._known_bytes, f"{held} characters kept, {once._known_bytes} counted"


def test_the_last_rows_are_not_overlooked_as_they_come(store, models, dependencies, write_input) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    reader = Reader(
        claim,
        dependencies.sources,
        models,
        dependencies.earlier_jobs,
        line_bytes_max=10_000,
        on_rows=lambda: None,
    )

    class Looked(deque):
        def __bool__(self) -> bool:
            was = len(self) > 0
            if not was and not reader._thread.is_alive() and reader._total is None:
                reader._thread.start()  # it reads everything between this look and the next
                reader.open(())
                reader._thread.join(10)
            return was

    reader._ahead = Looked()
    assert reader.has_more, "one row is there"
    reader.close()


def test_a_panic_of_the_tokenizer_does_not_hang_its_shard(
    store, model, write_input, run, monkeypatch
) -> None:
    class PanicException(BaseException):
        pass

    def panics(*args):
        raise PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(model, "tokenize", panics)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    assert runner.join(3), "the shard neither runs nor ends"


@pytest.mark.parametrize(
    "error", [StorageDenied("403"), ObjectTooLarge("a segment of 2 GiB"), OSError(28, "No space left")]
)
def test_rows_are_run_where_earlier_results_cannot_be_read(
    store, objects, model, run_job, run, write_input, monkeypatch, tmp_path, error
) -> None:
    earlier = run_job(numbered(3))
    monkeypatch.setattr(EarlierResults, "find", lambda *args: (_ for _ in ()).throw(error))
    model.submitted.clear()
    job = plan_bulk(
        store,
        (tmp_path / "in.jsonl").as_uri(),
        reuse=earlier.id,
        reused_job=earlier.id,
        output=(tmp_path / "o").as_uri(),
    )
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in numbered(3)))
    finished(run(claim_bulk(store)))
    shard = shard_of(store, job)
    assert shard.state is not ShardState.FAILED, "no row of the shard was run: all are lost"
    assert shard.state is ShardState.DONE


def test_a_segment_of_twins_can_be_read(store, objects, model, write_input, run) -> None:
    """A checkpoint is due for the size of its results, too."""
    write_input([batch_line(n, "same") for n in range(5000)])
    job = plan_bulk(store, INPUT)
    spacing = {"segment_interval_s": 2.0, "segment_spacing_s": 0.25}
    config = replace(CONFIG, segment_rows=64, held_chars_max=1_000_000, **spacing)
    runner = run(claim_bulk(store), config)
    [first] = model.wait_for(1)
    wait_until(lambda: len(runner._rows._waiting) >= 1024)
    model.answer(first.id, "x" * 4096)
    finished(runner)
    with store.snapshot() as tx:
        listed = tx.shards.segments(tx.shards.of_job(job.id, limit=1)[0].id)
    assert max(segment.size_bytes for segment in listed) <= 2 * config.held_chars_max


def test_a_watched_shard_tokenises_no_row_that_is_not_journalled(store, model, write_input, run) -> None:
    from nightshift.jobs import CrashHistory

    tokenized: list[str] = []
    tokenize = type(model).tokenize

    def noting(endpoint, requests):
        tokenized.extend(request.prompts_given[0].messages[-1]["content"] for request in requests)
        return tokenize(model, endpoint, requests)

    model.tokenize = noting
    write_input([batch_line(n) for n in range(200)])
    plan_bulk(store, INPUT)
    claim = replace(claim_bulk(store), crash_history=CrashHistory(2, (0,), frozenset()))
    run(claim)
    model.wait_for(1)  # the suspect, alone
    with store.snapshot() as tx:
        [held] = tx.leases.of_worker(claim.lease.worker_id, 10)
    assert held.in_flight == (0,)
    assert tokenized == [], "the model tokenises a row once it is journalled"
