"""A shard's ground: its input, its job in the database, and leases that run it."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import decode_segment
from nightshift.jobs import BulkClaim, Job, Shard, ShardState
from nightshift.jobs.files import file_key
from nightshift.store import Store
from tests.unit.workers.scripted import TENANT, ManualClock, ScriptedServer, chat_body, claim_bulk, plan_bulk
from workers.leases.heartbeat import Heartbeat
from workers.serving.model_server import Inference
from workers.shard.config import ShardConfig, ShardDependencies
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


@dataclass
class Ground:
    """One job whose shards are the whole input each, and what runs them on scripted models."""

    store: Store
    dependencies: ShardDependencies
    model: ScriptedServer
    heartbeat: Heartbeat
    clock: ManualClock
    job: Job | None = None
    runners: list[ShardRunner] = field(default_factory=list)

    @property
    def objects(self) -> Any:
        return self.dependencies.objects

    def plan(self, lines: Sequence[str] | int | None, **spec: Any) -> Job:
        """A job over these lines, over so many rows that differ in their text, or over the input as it is."""
        lines = [batch_line(number) for number in range(lines)] if isinstance(lines, int) else lines
        if lines is not None:
            self.objects.put(file_key(TENANT, INPUT), "".join(line + "\n" for line in lines).encode())
        self.job = plan_bulk(self.store, INPUT, **spec)
        return self.job

    def run(
        self,
        lines: Sequence[str] | int,
        config: ShardConfig = CONFIG,
        spec: dict[str, Any] | None = None,
        **parts: Any,
    ) -> ShardRunner:
        """The first lease of the job over these lines. `parts`: dependencies in place of the usual ones."""
        self.plan(lines, **spec or {})
        return self.lease(config, **parts)

    def lease(
        self,
        config: ShardConfig = CONFIG,
        worker_id: str = "worker-1",
        claim: BulkClaim | None = None,
        **parts: Any,
    ) -> ShardRunner:
        """The next lease of the job."""
        claim = claim or claim_bulk(self.store, worker_id)
        runner = ShardRunner(claim, replace(self.dependencies, **parts), config, on_end=lambda runner: None)
        self.heartbeat.hold(claim.lease, runner, self.clock())
        runner.start()
        self.runners.append(runner)
        return runner

    def begun(self, count: int) -> list[Inference]:
        """The requests in the engine, once there are so many."""
        return self.model.wait_for(count)

    def answer(self, *inferences: Inference) -> None:
        for inference in inferences:
            self.model.answer(inference.id)

    def drain(self, runner: ShardRunner) -> None:
        runner.drain()
        finished(runner)
        self.model.submitted.clear()

    @property
    def shard(self) -> Shard:
        assert self.job is not None
        return shard_of(self.store, self.job)

    @property
    def state(self) -> ShardState:
        return self.shard.state

    @property
    def fault(self) -> str | None:
        """The message to the shard's owner about what it waits for."""
        fault = self.shard.fault
        return None if fault is None else fault.error.message

    @property
    def recorded(self) -> Job:
        """The job as the database has it."""
        assert self.job is not None
        with self.store.snapshot() as tx:
            return tx.jobs.fetch(self.job.id)

    @property
    def results(self) -> list[RowResult]:
        assert self.job is not None
        with self.store.snapshot() as tx:
            listed = tx.shards.segments_of_job(TENANT, self.job.id, limit=100)
        keys = [entry.segment.key for entry in listed]
        return [result for key in keys for result in decode_segment(self.objects.read(key))]

    @property
    def by_id(self) -> dict[str, RowResult]:
        results = self.results
        by_id = {result.custom_id: result for result in results}
        assert len(by_id) == len(results), "a row has two results"
        return by_id


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


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls what another thread commits to the database: there is no signal to wait on across it."""
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come true")
