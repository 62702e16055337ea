"""Shared answers are never stale, hold little, hang no shard, and need no earlier run."""

import logging
import threading
from collections import deque
from dataclasses import replace

import pytest

from nightshift.bulk.results.earlier_results import EarlierResults
from nightshift.bulk.results.row_digests import RowDigests
from nightshift.errors import StorageDenied
from nightshift.fleet.models import Model, ModelKind
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import CrashHistory, ShardState, StopReason
from nightshift.lifecycle.recovery import release_worker
from nightshift.objectstore import DirectoryStore
from nightshift.objectstore.objects import ObjectTooLarge
from tests.unit.workers.scripted import chat_body, claim_bulk, prompt_of
from tests.unit.workers.shard.helpers import CONFIG, Ground, batch_line, finished, wait_until
from tests.unit.workers.shard.reuse.reusing import (
    RunJob,
    numbered,
    prompts,
    same,
)
from workers.shard.reader import Reader
from workers.shard.run_once import WAITING_MAX

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
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, order: str
) -> None:
    ground.run([batch_line(0, "same"), batch_line(1, "own")], spec={"shards": 2})
    model = ground.model
    ground.begun(2)  # "same", "own" of the first shard
    waiter = ground.lease()
    wait_until(lambda: waiter._rows.num_waiting == 2)
    puts, go, put = threading.Event(), threading.Event(), DirectoryStore.put

    def slow(objects: DirectoryStore, key: str, data: bytes, **options: object) -> object:
        if key.startswith("segments/") and int(key.split("/")[3]) == waiter.claim.shard.shard_no:
            puts.set()
            assert go.wait(10)
        return put(objects, key, data, **options)

    monkeypatch.setattr(DirectoryStore, "put", slow)
    by_prompt = {prompt_of(inference): inference for inference in model.running.values()}
    ground.answer(by_prompt["own"])  # the waiter has a result to write
    assert puts.wait(10)
    if order == "drain":
        waiter.drain()
    else:
        waiter.stop_requested(StopReason.CANCELLED)
    wait_until(lambda: not waiter._ledger.is_open)
    with caplog.at_level(logging.INFO):
        ground.answer(by_prompt["same"])
        wait_until(lambda: not ground.dependencies.once._running)  # the waiter has been told
        go.set()
        finished(waiter)
    assert [record.getMessage() for record in caplog.records if "broke" in record.getMessage()] == []
    ended = [record for record in caplog.records if getattr(record, "action", "") == "shard_ended"]
    assert all("broke" not in record.outcome for record in ended), [record.outcome for record in ended]


def test_what_is_remembered_of_a_row_is_counted_and_none_of_its_own_is(ground: Ground) -> None:
    ground.model.echo = True
    lines = [batch_line(n, f"text {n}", doc="x" * 10_000) for n in range(20)]
    finished(ground.run(lines, replace(CONFIG, line_bytes_max=20_000), {"keep_columns": ("doc",)}))

    once = ground.dependencies.once
    assert {(result.kept, result.custom_id) for result in once._known.values()} == {(None, "")}


def test_the_last_rows_are_not_overlooked_as_they_come(ground: Ground) -> None:
    ground.plan(1)
    reader = Reader(claim_bulk(ground.store), ground.dependencies, CONFIG, on_rows=lambda: None)

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
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panics(*args: object) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    ground.model.tokenize = panics  # type: ignore[method-assign]
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    assert ground.run(1).join(3), "the shard neither runs nor ends"


@pytest.mark.parametrize(
    "error", [StorageDenied("403"), ObjectTooLarge("a segment of 2 GiB"), OSError(28, "No space left")]
)
def test_rows_are_run_where_earlier_results_cannot_be_read(
    ground: Ground, run_job: RunJob, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    earlier = run_job(numbered(3))
    monkeypatch.setattr(EarlierResults, "find", lambda *args: (_ for _ in ()).throw(error))
    run_job(numbered(3), earlier, writes=False)

    assert len(prompts(ground)) == 3
    assert ground.state is ShardState.DONE


def test_a_segment_of_twins_can_be_read(ground: Ground) -> None:
    """A checkpoint is due for the size of its results, too."""
    spacing = {"segment_interval_s": 2.0, "segment_spacing_s": 0.25}
    config = replace(CONFIG, segment_rows=64, held_chars_max=1_000_000, **spacing)
    runner = ground.run(same(3000), config)
    [first] = ground.begun(1)
    wait_until(lambda: runner._rows.num_waiting >= WAITING_MAX)
    ground.model.answer(first.id, "x" * 4096)
    finished(runner)
    with ground.store.snapshot() as tx:
        listed = tx.shards.segments(ground.shard.id)
    assert max(segment.size_bytes for segment in listed) <= 2 * config.held_chars_max


def test_a_watched_shard_tokenises_no_row_that_is_not_journalled(ground: Ground) -> None:
    tokenized: list[str] = []
    tokenize = ground.model.tokenize

    def noting(endpoint, requests):
        tokenized.extend(request.prompts_given[0].messages[-1]["content"] for request in requests)
        return tokenize(endpoint, requests)

    ground.model.tokenize = noting  # type: ignore[method-assign]
    ground.plan(200)
    claim = replace(claim_bulk(ground.store), crash_history=CrashHistory(2, (0,), frozenset()))
    ground.lease(claim=claim)
    ground.begun(1)  # the suspect, alone
    with ground.store.snapshot() as tx:
        [held] = tx.leases.of_worker(claim.lease.worker_id, 10)
    assert held.in_flight == (0,)
    assert tokenized == [], "the model tokenises a row once it is journalled"


def test_a_shard_is_watched_until_rows_behind_those_that_waited_have_run(ground: Ground) -> None:
    """The row that killed the worker may lie behind all that waited: it is to be journalled again."""
    waiting = 2 * (CONFIG.rows_at_risk_max - WAITING_MAX)  # more than were in the engine, or had results
    assert CONFIG.rows_in_flight_max < waiting < WAITING_MAX
    poison = 1 + waiting
    lost = ground.run([*same(poison), batch_line(poison, "poison")])
    assert sorted(map(prompt_of, ground.begun(2))) == ["poison", "same"]
    lost.lease_lost()
    finished(lost)
    with ground.store.transaction() as tx:
        release_worker(tx, "worker-1", 20, tx.now(), ExitCause.KILLED)

    claim = claim_bulk(ground.store)
    assert claim.crash_history.is_watched
    ground.lease(claim=claim)
    answered, running = 0, ground.begun(1)
    while "poison" not in map(prompt_of, running):
        ground.answer(*running)
        answered += len(running)
        running = ground.begun(1)

    assert answered > CONFIG.rows_at_risk_max - WAITING_MAX, "its rows begin in order"
    with ground.store.snapshot() as tx:
        [held] = tx.leases.of_worker(claim.lease.worker_id, 10)
    assert poison in held.in_flight
    assert held.crash_count == 1
