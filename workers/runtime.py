"""Everything that runs inside one worker process, started and stopped in the right order.

threads   celery main ──► intake ──► shard-N (one per bulk shard held) ──┐
                               └───► online (publishes answers)          ├──► engine-MODEL (one per model)
          heartbeat (keeps the leases of both) ◄── nudges               ┘
"""

import logging
import os
import socket
import threading
from dataclasses import dataclass
from typing import Final

from nightshift.checkpoints import check_distinct
from nightshift.errors import DatabaseUnavailable
from nightshift.fleet import EXIT_DRAIN_TOO_SLOW, EXIT_ENGINE_DIED, Capacity, Worker, WorkerState
from nightshift.jobs import BulkClaim, OnlineClaim
from nightshift.nudges import NudgeListener
from nightshift.objectstore import ObjectStore
from nightshift.settings import QueueSettings, WorkerSettings
from nightshift.sources import Sources
from nightshift.store import Store
from nightshift.streams import StreamWriter
from workers.heartbeat import Heartbeat
from workers.intake import Intake
from workers.models import LoadModel, Models
from workers.online_runner import OnlineRunner
from workers.shard_runner import Rooms, ShardConfig, ShardRunner
from workers.suspicion import Isolation

log = logging.getLogger(__name__)

ONLINE_DRAIN_S: Final = 10.0  # what can finish within this time may; the rest goes back to the queue


@dataclass(frozen=True)
class Connections:
    """What a worker is connected to."""

    store: Store
    objects: ObjectStore
    sources: Sources
    streams: StreamWriter
    queue: QueueSettings


class Runtime:
    """One worker. `start` loads the models and takes on work; `drain` gives all of it back."""

    def __init__(
        self, worker_id: str, settings: WorkerSettings, connections: Connections, load: LoadModel
    ) -> None:
        self._worker_id = worker_id
        self._load = load
        self._settings = settings
        self._connections = connections
        self._heartbeat = Heartbeat(connections.store, worker_id, settings.lease)
        self._nudges = NudgeListener(connections.queue, self._heartbeat.beat_now)
        self._lock = threading.Lock()
        self._shards: set[ShardRunner] = set()
        self._isolation = Isolation()
        self._is_draining = threading.Event()
        self._drainer = threading.Thread(target=self._drain, name="drain", daemon=True)

    def start(self) -> None:
        """Load the models, then open for work. Raises ConfigurationError when a model cannot be served."""
        self._register()
        self._heartbeat.start()
        self._nudges.start()
        check_distinct(self._settings.models)
        self._models = Models(
            [
                self._load(path_or_id, position, self._settings, engine_died)
                for position, path_or_id in enumerate(self._settings.models)
            ]
        )
        self._online = OnlineRunner(
            self._connections.store,
            self._models,
            self._connections.streams,
            self._heartbeat,
            on_end=lambda: self.intake.online_place_freed(),
            isolation=self._isolation,
        )
        self.intake = Intake(
            self._connections.store,
            self._worker_id,
            self._models.ids,
            self._settings.lease.ttl_s,
            places=self,
            heartbeat=self._heartbeat,
            capacity=Capacity(self._settings.capacity),
        )
        for server in self._models:
            server.start()
        self._online.start()
        self.intake.start()
        self._open_for_work()

    def begin_drain(self) -> None:
        """Start draining and return at once; may be called again, and from a signal handler."""
        if not self._is_draining.is_set():
            self._is_draining.set()
            self._drainer.start()

    def drain(self) -> None:
        """Take nothing new, save what is under way, hand every lease back. Bounded by `drain_s`."""
        self.begin_drain()
        self._drainer.join()

    def _drain(self) -> None:
        overdue = threading.Timer(self._settings.drain_s, _drain_too_slow)
        overdue.daemon = True
        overdue.start()
        self._mark(WorkerState.DRAINING)
        self.intake.stop()
        for runner in self._running_shards():
            runner.drain()
        self._online.drain(ONLINE_DRAIN_S)
        for runner in self._running_shards():
            runner.join(self._settings.drain_s)
        for server in self._models:
            server.stop()
        self._nudges.stop()
        self._heartbeat.stop()
        self._mark(WorkerState.STOPPED)
        overdue.cancel()

    # -- places, for the intake ------------------------------------------------------------------------

    def online_free(self) -> int:
        return 0 if self._isolation.is_held else self._settings.online_slots - self._online.count

    def bulk_free(self) -> int:
        if self._isolation.is_held:
            return 0
        with self._lock:
            return self._settings.shards_max - len(self._shards)

    def run_online(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        self._online.run(claim, claimed_at_s)

    def run_bulk(self, claim: BulkClaim, claimed_at_s: float) -> None:
        runner = ShardRunner(claim, self._rooms(), self._shard_config(), self._shard_ended)
        with self._lock:
            self._shards.add(runner)
        self._heartbeat.hold(claim.lease, runner, claimed_at_s, runner.tokens_at_risk)
        runner.start()

    def _shard_ended(self, runner: ShardRunner) -> None:
        with self._lock:
            self._shards.discard(runner)
        self.intake.bulk_place_freed()

    def _running_shards(self) -> list[ShardRunner]:
        with self._lock:
            return list(self._shards)

    def _rooms(self) -> Rooms:
        return Rooms(
            store=self._connections.store,
            objects=self._connections.objects,
            sources=self._connections.sources,
            models=self._models,
            heartbeat=self._heartbeat,
            isolation=self._isolation,
        )

    def _shard_config(self) -> ShardConfig:
        settings = self._settings
        return ShardConfig(
            rows_in_flight_max=settings.rows_in_flight_max,
            segment_rows=settings.segment_rows,
            segment_interval_s=settings.segment_interval_s,
            carry_over_interval_s=settings.carry_over_interval_s,
            flush_s=settings.bulk_drain_s,
            stop_grace_s=settings.stop_grace_s,
            line_bytes_max=settings.line_bytes_max,
        )

    # -- how the rest of the service sees this worker --------------------------------------------------

    def _register(self) -> None:
        with self._connections.store.transaction() as tx:
            now = tx.now()
            tx.workers.register(
                Worker(
                    id=self._worker_id,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    state=WorkerState.STARTING,
                    models=(),
                    capacity=Capacity(self._settings.capacity),
                    started_at=now,
                    heartbeat_at=now,
                )
            )

    def _open_for_work(self) -> None:
        with self._connections.store.transaction() as tx:
            now = tx.now()
            for server in self._models:
                tx.workers.register_model(server.model, now)
            tx.workers.serves(self._worker_id, self._models.ids, now)
        self._heartbeat.state = WorkerState.READY
        log.info("worker ready", extra={"action": "worker_ready", "models": self._models.ids})

    def _mark(self, state: WorkerState) -> None:
        self._heartbeat.state = state
        try:
            with self._connections.store.transaction() as tx:
                tx.workers.mark(self._worker_id, state, tx.now())
        except DatabaseUnavailable as error:
            log.warning("state not recorded", extra={"action": "mark_failed", "reason": error.message})


def engine_died(error: BaseException) -> None:
    """A worker without its engine must not live on: it would hold its leases and do nothing."""
    log.critical("engine died", exc_info=error, extra={"action": "engine_died"})
    logging.shutdown()
    os._exit(EXIT_ENGINE_DIED)


def _drain_too_slow() -> None:
    log.critical("drain took too long", extra={"action": "drain_too_slow"})
    logging.shutdown()
    os._exit(EXIT_DRAIN_TOO_SLOW)
