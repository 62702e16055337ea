"""What the tests of a shard share."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import decode_segment
from nightshift.jobs import Job, Shard
from nightshift.objectstore import ObjectStore
from nightshift.store import Store
from tests.unit.workers.scripted import TENANT, chat_body
from workers.shard.config import ShardConfig
from workers.shard.runner import ShardRunner

INPUT = "file-input"

CONFIG = ShardConfig(
    rows_in_flight_max=8,
    segment_rows=4,
    segment_interval_s=0.05,
    carry_over_interval_s=0,
    flush_s=5,
    stop_grace_s=30,
    line_bytes_max=10_000,
)


AT_ONCE = replace(CONFIG, listing_retry_s=0.01, fault_delay_s=lambda faults, key: 0.01)
"""Retries do not wait long."""

TOLD_AT_ONCE = replace(CONFIG, silent_s=0.001, silence_look_s=0.01)
"""A store is silent as soon as it is asked, and is looked at all the time."""


def batch_line(number: int, text: str | None = None, **fields: object) -> str:
    line = {
        "custom_id": f"r{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": chat_body(text or f"row {number}"),
    }
    return json.dumps(line | fields)


def finished(runner: ShardRunner) -> None:
    assert runner.join(10), "the shard did not end"


def shard_of(store: Store, job: Job) -> Shard:
    with store.snapshot() as tx:
        return tx.shards.of_job(job.id, limit=1)[0]


def results_of(store: Store, objects: ObjectStore, job: Job) -> list[RowResult]:
    with store.snapshot() as tx:
        listed = tx.shards.segments_of_job(TENANT, job.id, limit=100)
    keys = [entry.segment.key for entry in listed]
    return [result for key in keys for result in decode_segment(objects.read(key))]


def by_id(results: Sequence[RowResult]) -> dict[str, RowResult]:
    assert len({r.custom_id for r in results}) == len(results), "a row has two results"
    return {result.custom_id: result for result in results}


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll what another thread commits to the database: there is no signal to wait on across it."""
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come true")
