"""Online requests of one worker: from their claims to what their clients and the database are told."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from nightshift.broker.token_streams import End
from nightshift.jobs import Answer, Job, OnlineClaim, ShardState, StopReason
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.unit.workers.scripted import TENANT, ManualClock, RecordingStreams, ScriptedServer, claim_online
from workers.leases.heartbeat import Heartbeat
from workers.leases.isolation import Isolation
from workers.online.runner import OnlineRunner
from workers.serving.model_server import Inference
from workers.serving.models import Models

WAIT_MAX_S = 60


@dataclass
class Online:
    store: Store
    runner: OnlineRunner
    model: ScriptedServer
    streams: RecordingStreams
    heartbeat: Heartbeat
    isolation: Isolation
    clock: ManualClock

    def claim(self, text: str = "hello", *, is_suspect: bool = False, **fields: Any) -> OnlineClaim:
        return replace(claim_online(self.store, text, **fields), runs_alone=is_suspect)

    def run(self, text: str | OnlineClaim = "hello", *, is_suspect: bool = False) -> OnlineClaim:
        """A claimed request that this worker has taken."""
        claim = self.claim(text, is_suspect=is_suspect) if isinstance(text, str) else text
        self.runner.run(claim, self.clock())
        return claim

    @property
    def running(self) -> Inference:
        """The only request in the engine."""
        [inference] = self.model.wait_for(1)
        return inference

    def answer(self, text: str = "HELLO") -> None:
        self.model.answer(self.running.id, text)

    def ended(self) -> None:
        assert self.streams.ended.acquire(timeout=WAIT_MAX_S), "the stream did not end"

    @property
    def told_of_ends(self) -> list[End]:
        return [entry for entry in self.streams.entries if isinstance(entry, End)]

    def job(self, claim: OnlineClaim) -> Job:
        with self.store.snapshot() as tx:
            return tx.jobs.fetch(claim.job.id)

    def result(self, claim: OnlineClaim) -> Answer | None:
        with self.store.snapshot() as tx:
            return tx.shards.online_result(TENANT, claim.job.id)

    def shard_state(self, claim: OnlineClaim) -> ShardState:
        with self.store.snapshot() as tx:
            [shard] = tx.shards.of_job(claim.job.id, limit=1)
        return shard.state

    def cancel(self, claim: OnlineClaim) -> None:
        """Its job is told to stop, and the next heartbeat has told the worker."""
        with self.store.transaction() as tx:
            assert transitions.request_stop(tx, tx.jobs.fetch(claim.job.id), StopReason.CANCELLED, tx.now())
        self.heartbeat.beat()

    def lose(self, claim: OnlineClaim) -> None:
        """Its lease has run out, and the next heartbeat has told the worker."""
        self.expire(claim)
        self.heartbeat.beat()

    def expire(self, claim: OnlineClaim) -> None:
        with self.store.transaction() as tx:
            held = tx.leases.of_worker("worker-1", 10)
            [lost] = [lease for lease in held if lease.shard_id == claim.lease.shard_id]
            assert tx.leases.requeue(lost)


class Prepared(OnlineRunner):
    """Has begun a request, on one of its threads, when `run` returns."""

    def run(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        super().run(claim, claimed_at_s)
        assert self._preparing.wait_until_idle(10)


class SlowServer(ScriptedServer):
    """Tokenizes a text only when the test lets it."""

    def __init__(self) -> None:
        super().__init__("demo")
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def submit(self, inference: Inference) -> None:
        self.begun.release()
        assert self.may_end.wait(WAIT_MAX_S)
        super().submit(inference)

    def wait_until_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=WAIT_MAX_S), "nothing was begun"


@pytest.fixture
def runner_type() -> type[OnlineRunner]:
    return Prepared


@pytest.fixture
def online(
    store: Store,
    models: Models,
    model: ScriptedServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    clock: ManualClock,
    runner_type: type[OnlineRunner],
) -> Iterator[Online]:
    isolation = Isolation()
    runner = runner_type(store, models, streams, heartbeat, isolation=isolation, retry_s=0.0)  # type: ignore[arg-type]
    runner.start()
    yield Online(store, runner, model, streams, heartbeat, isolation, clock)
    if isinstance(model, SlowServer):
        model.may_end.set()
    runner.drain(0)
