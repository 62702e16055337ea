"""Everything that runs inside one worker process, started and stopped in the right order.

threads   celery main ──► intake ──► shard-N (one per bulk shard held) ──┐
                               └───► online (publishes answers)          ├──► engine-MODEL (one per model)
          heartbeat (keeps the leases of both) ◄── hints                 ┘
          output-parts (writes parts of outputs)
          residency (loads and unloads lazy models)
          watchdog (is any of them stuck?)    spot (is this machine about to go?)
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from nightshift.broker.hints import HintListener
from nightshift.broker.queue import Queue
from nightshift.broker.token_streams import StreamWriter
from nightshift.bulk.results.part_writer import PartDependencies
from nightshift.fleet.checkpoints import check_distinct
from nightshift.fleet.figures import DeviceFigures
from nightshift.fleet.workers import (
    EXIT_QUEUE_CONNECTION_LOST,
    EXIT_STUCK_LOAD,
    Capacity,
    Machine,
    WorkerState,
)
from nightshift.jobs import BulkClaim, OnlineClaim
from nightshift.jobs.priorities import OnlineRoom, Room, online_room_beside
from nightshift.objectstore import Locations, ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.outbound.cloud_metadata import Provider
from nightshift.process import memory
from nightshift.process.metrics.serving import MetricsServer
from nightshift.process.settings import QueueSettings, WorkerSettings
from nightshift.store import Store
from workers.health.device import device_reader
from workers.health.figures import Figures
from workers.health.metrics import ShardCounts, WorkerMetrics
from workers.health.notices import Notices
from workers.health.registration import Registration
from workers.health.shutdown import Shutdown, dump_stacks, engine_died, exit_process
from workers.health.watchdog import (
    DeadThread,
    Finding,
    SilentConsumer,
    Stuck,
    Watchdog,
    queues_with_places,
)
from workers.intake.claiming import Intake, IntakeTimes
from workers.leases.heartbeat import Heartbeat
from workers.leases.isolation import Isolation
from workers.online.runner import OnlineRunner
from workers.output_parts import OutputParts
from workers.serving.model_server import Files, ModelServer
from workers.serving.models import LoadModels, Models
from workers.serving.residency.policy import ResidencyConfig
from workers.serving.residency.residency import Residency
from workers.shard.config import ShardConfig, ShardDependencies
from workers.shard.figures import HeldTime
from workers.shard.run_once import EarlierJobs
from workers.shard.shards import Shards

log = logging.getLogger(__name__)

FLUSH_SHARE: Final = 0.8  # of the time that bulk has to be handed back: for its last checkpoints
LATE_SHARD_S: Final = 1.0  # for a shard that was claimed while the drain began
CELERY_STOP_S: Final = 5.0  # for Celery to end, once there is nothing left to hand back


@dataclass(frozen=True)
class RuntimeTimes:
    online_drain_s: float = 10.0  # for requests to finish during a drain; the others are handed back
    intake: IntakeTimes = field(default_factory=IntakeTimes)


@dataclass(frozen=True)
class Connections:
    store: Store
    objects: ObjectStore
    sources: Sources
    locations: Locations
    files: Files
    streams: StreamWriter
    queue: QueueSettings
    close_traces: Callable[[], None] = lambda: None


class Runtime:
    """One worker. `start` loads the models and takes on work; `drain` gives all of it back."""

    def __init__(
        self,
        worker_id: str,
        settings: WorkerSettings,
        connections: Connections,
        load: LoadModels,
        provider: Provider | None = None,
        *,
        times: RuntimeTimes = RuntimeTimes(),
        exit: Callable[[int], None] = exit_process,
    ) -> None:
        """`provider` gives spot notices. `exit` ends the process, and does not return."""
        self._worker_id = worker_id
        self._figures: Figures | None = None  # until the models are loaded
        self._device: Callable[[], DeviceFigures | None] = lambda: None  # likewise
        self._load = load
        self._times = times
        self._settings = settings
        self._connections = connections
        self._shutdown = Shutdown(exit)
        self._registration = Registration(
            connections.store, worker_id, Machine(Capacity(settings.capacity), settings.pools)
        )
        self._heartbeat = Heartbeat(
            connections.store,
            worker_id,
            settings.lease,
            on_drain_request=self._shutdown.drain_requested,
            figures=lambda: None if self._figures is None else self._figures.now(),
        )
        self._hints = HintListener(connections.queue, self._heartbeat.beat_now)
        self._queue = Queue(connections.queue)  # its length, for the watchdog
        self._notices = Notices(
            provider, settings, self._registration, self._heartbeat, self._shutdown.leave_once
        )
        self._isolation = Isolation(on_free=lambda: self.intake.bulk_place_freed())
        self._stop_celery: Callable[[int], None] = lambda exit_code: None
        self._drainer = threading.Thread(target=self._drain_when_told, name="drain", daemon=True)

    def start(self, stop_celery: Callable[[int], None] = lambda exit_code: None) -> None:
        """Loads the models, then opens for work. Raises ConfigurationError when a model cannot be served.

        `stop_celery` is called as a drain begins: Celery's main loop is to end too, with this exit code.
        """
        self._stop_celery = stop_celery
        self._registration.register()
        self._heartbeat.start()
        self._hints.start()
        self._notices.wait_until_withdrawn()
        memory.share_free_memory()
        check_distinct(self._settings.models, self._settings.lazy_models)
        loaded = self._load(self._settings, engine_died)
        self._models = Models(loaded, self._settings.answer_bytes_max)
        self._device = device_reader(self._settings.device)
        self._make_parts()
        memory.collect_less_often()
        self._serve_metrics()
        for server in self._models:
            self._prepare(server)
            server.start()
        self._online.start()
        self._drainer.start()  # a signal's handler, which may interrupt anything, could not do that safely
        self._shutdown.work_begins()
        self.intake.start()
        self._output_parts.start()
        self._watchdog.start()
        self._report_ready()
        self._residency.start()

    def _serve_metrics(self) -> None:
        """Raises ConfigurationError."""
        if self._settings.worker_metrics_port:
            self._metrics.open_port(self._settings.worker_metrics_port, "WORKER_METRICS_PORT")
        if self._settings.metrics_socket is not None:
            self._metrics.open_socket(self._settings.metrics_socket)

    def _prepare(self, server: ModelServer) -> None:
        server.use_files(self._connections.files)

    def _make_parts(self) -> None:
        """Makes the parts that run rows and requests, which needs the models."""
        self._online = OnlineRunner(
            self._connections.store,
            self._models,
            self._connections.streams,
            self._heartbeat,
            on_end=lambda: self.intake.online_place_freed(),
            isolation=self._isolation,
        )
        self._shards = Shards(
            self._shard_dependencies(),
            self._shard_config(),
            on_place_freed=lambda: self.intake.bulk_place_freed(),
            on_room_changed=lambda: self.intake.bulk_room_changed(),
            full_shards_max=self._settings.shards_max,
        )
        machine = Machine(Capacity(self._settings.capacity), self._settings.pools)
        self._residency = Residency(
            self._connections.store,
            self._models,
            work=self,
            registered=self._registration,
            prepare=self._prepare,
            machine=machine,
            config=ResidencyConfig(self._settings.model_residency_s, self._settings.model_idle_s),
            on_change=lambda: self.intake.models_changed(),
        )
        self.intake = Intake(
            self._connections.store,
            self._worker_id,
            self._models,
            self._settings.lease.ttl_s,
            places=self,
            heartbeat=self._heartbeat,
            machine=machine,
            on_left=self._residency.wake,
            times=self._times.intake,
        )
        self._output_parts = OutputParts(
            self._part_dependencies(), self._worker_id, runs_rows=lambda: len(self._shards) > 0
        )
        self._watchdog = self._make_watchdog()
        self._figures = Figures(
            lambda: self._models,
            self._count_leases,
            self._online.times,
            rows_finished=self._shards.rows_finished,
            starved_seconds=self._shards.starvation.seconds,
            device=self._device,
        )
        metrics = WorkerMetrics(
            lambda: self._models,
            self._count_leases,
            lambda: self._shutdown.is_draining,
            self._online.times,
            self._residency.counts if self._models.lazy else None,
            ShardCounts(
                self._shards.rows_finished,
                self._shards.starvation.seconds,
                self._shards.storage_counts,
                lambda: self._shards.held_time.total,
                self._settings.prices,
            ),
            self._device,
        )
        self._metrics = MetricsServer(metrics.registry)

    # -- leaving

    def told_to_stop(self) -> None:
        """SIGTERM has come; called from its handler."""
        self._shutdown.told_to_stop()

    @property
    def exit_code(self) -> int:
        """The code that this process ends with if it leaves in order."""
        return self._shutdown.exit_code

    def drain(self) -> None:
        """Takes nothing new, saves what is under way and hands every lease back. Bounded by `drain_s`."""
        if self._shutdown.begin_drain():
            self._drainer.join()

    def _drain_when_told(self) -> None:
        self._shutdown.wait_for_drain()
        self._drain()

    def _drain(self) -> None:
        """Drains the worker. No step of this waits for the database before the shards are told to drain."""
        began_s = time.monotonic()
        overdue = threading.Timer(self._settings.drain_s, self._shutdown.drain_too_slow)
        overdue.daemon = True
        overdue.start()
        self._heartbeat.state = WorkerState.DRAINING
        self._heartbeat.beat_now()
        self._watchdog.stop()
        self._residency.stop()
        self._output_parts.stop()
        if self._shutdown.is_in_order:
            self._stop_celery(self.exit_code)
        stopping = threading.Thread(target=self.intake.stop, name="intake-stop", daemon=True)
        stopping.start()
        self._shards.drain(began_s + self._settings.bulk_drain_s)
        stopping.join()
        self._shards.drain(max(began_s + self._settings.bulk_drain_s, time.monotonic() + LATE_SHARD_S))
        bulk_s = time.monotonic() - began_s
        self._online.drain(max(0.0, self._times.online_drain_s - bulk_s))
        self._output_parts.join(LATE_SHARD_S)
        for server in self._models:
            server.stop()
        self._hints.stop()
        self._heartbeat.stop()
        self._registration.mark(WorkerState.STOPPED)
        self._metrics.close()
        self._connections.close_traces()
        log.info(
            "drained",
            extra={
                "action": "drained",
                "bulk_seconds": round(bulk_s, 3),
                "seconds": round(time.monotonic() - began_s, 3),
            },
        )
        overdue.cancel()
        if not self._shutdown.is_in_order:
            self._shutdown.exit(self.exit_code)
        self._end_soon()

    def _end_soon(self) -> None:
        """Celery ends by itself, and gives messages back; but it may wait for a Redis that is away."""
        end = threading.Timer(CELERY_STOP_S, lambda: self._shutdown.exit(self.exit_code))
        end.daemon = True
        end.start()

    # -- watchdog

    def _make_watchdog(self) -> Watchdog:
        threads = {
            "intake": lambda: self.intake.is_alive,
            "heartbeat": lambda: self._heartbeat.is_alive,
            "online": lambda: self._online.is_alive,
            "shard": lambda: self._shards.are_alive,
            "output_parts": lambda: self._output_parts.is_alive,
            "residency": lambda: self._residency.is_alive,
        }
        silent = SilentConsumer(
            self._queue,
            received=lambda: self.intake.messages_received,
            without_message=lambda: self.intake.online_without_message,
            subscribed_to=lambda: queues_with_places(
                self.online_room().at_once, self.bulk_room(self._models.warm)
            ),
            limit_s=self._settings.deaf_after_s,
        )
        steps = Stuck(self._steps_under_way, self._settings.step_timeout_s)
        loads = Stuck(
            lambda: {"loading a model": self._residency.loading_since_s},
            self._settings.model_load_timeout_s,
            EXIT_STUCK_LOAD,
        )
        return Watchdog([steps, loads, DeadThread(threads), silent], self._on_finding)

    def _steps_under_way(self) -> dict[str, float | None]:
        return {f"an engine step of {server.model.id}": server.stepping_since_s for server in self._models}

    def _on_finding(self, finding: Finding) -> None:
        if self._shutdown.is_draining:
            return  # parts are being stopped
        log.critical("stuck: %s", finding.reason, extra={"action": "stuck", "exit_code": finding.exit_code})
        dump_stacks()
        if finding.exit_code == EXIT_QUEUE_CONNECTION_LOST:
            self._shutdown.leave(EXIT_QUEUE_CONNECTION_LOST)  # the engine works: drain
        else:
            self._shutdown.exit(finding.exit_code)

    # -- places, for the intake

    def online_room(self) -> OnlineRoom:
        places = 0 if self._isolation.is_held else self._settings.online_slots
        return online_room_beside(self._online.counts_by_tenant(), places)

    def bulk_room(self, models: Sequence[str]) -> Room | None:
        return None if self._isolation.is_held else self._shards.room(models)

    def run_online(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        self._online.run(claim, claimed_at_s)

    def run_bulk(self, claim: BulkClaim, claimed_at_s: float) -> None:
        runner = self._shards.run(claim, claimed_at_s)
        if self._shutdown.is_draining:
            runner.drain()

    # -- work, for the residency of models

    def count_of(self, model_id: str) -> int:
        return self._online.count_of(model_id) + self._shards.count_of(model_id)

    def hand_back_of(self, model_id: str) -> None:
        self._shards.hand_back_of(model_id)

    def _count_leases(self) -> dict[str, int]:
        return {"online": self._online.count, "bulk": len(self._shards)}

    def _shard_dependencies(self) -> ShardDependencies:
        return ShardDependencies(
            store=self._connections.store,
            objects=self._connections.objects,
            sources=self._connections.sources,
            models=self._models,
            heartbeat=self._heartbeat,
            earlier_jobs=EarlierJobs(self._connections.store, self._connections.objects),
            isolation=self._isolation,
            held_time=HeldTime(Capacity(self._settings.capacity)),
        )

    def _part_dependencies(self) -> PartDependencies:
        parts = self._connections
        return PartDependencies(
            parts.store,
            parts.objects,
            parts.sources,
            parts.locations,
            self._settings.line_bytes_max,
        )

    def _shard_config(self) -> ShardConfig:
        settings = self._settings
        return ShardConfig(
            rows_in_flight_max=settings.decoder_rows_in_flight_max,
            encoder_rows_in_flight_max=settings.encoder_rows_in_flight_max,
            segment_rows=settings.segment_rows,
            segment_interval_s=settings.segment_interval_s,
            carry_over_interval_s=settings.carry_over_interval_s,
            flush_s=FLUSH_SHARE * settings.bulk_drain_s,
            stop_grace_s=settings.stop_grace_s,
            line_bytes_max=settings.line_bytes_max,
            segment_spacing_s=settings.segment_spacing_s,
        )

    def _report_ready(self) -> None:
        lazy = self._models.lazy
        loaded = [model for server in self._models for model in server.models]
        models = [*loaded, *(model.model for model in lazy.values())]
        self._registration.open(models, self._models.warm if lazy else None)
        if not self._shutdown.is_draining:
            self._heartbeat.state = WorkerState.READY
        log.info("worker ready", extra={"action": "worker_ready", "models": self._models.ids})
