"""`python -m scheduler`: the composition root. Reads the settings, opens what the duties need, runs them.

Any number of schedulers may run; one of them leads and does the work, the others stand by. SIGTERM and SIGINT
end it within seconds, whatever it is doing.
"""

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

from nightshift.broker.queue import Queue
from nightshift.broker.token_streams import StreamDeleter
from nightshift.bulk.results.part_writer import PartDependencies
from nightshift.bulk.rows.validation import FileLimits
from nightshift.errors import ConfigurationError, DatabaseUnavailable
from nightshift.lifecycle.catalogue import CachedCatalogue
from nightshift.lifecycle.submission import Submitter, egress_config
from nightshift.objectstore import Locations, ObjectStore, open_store
from nightshift.objectstore.sources import Sources
from nightshift.outbound.safe_http import Egress, EgressConfig
from nightshift.process import memory
from nightshift.process.logs import set_up_logging
from nightshift.process.metrics.serving import MetricsServer
from nightshift.process.private_files import keep_files_private
from nightshift.process.settings import (
    DataSettings,
    LocationSettings,
    QueueSettings,
    QuotaSettings,
    RetentionSettings,
    SchedulerSettings,
    SubmissionSettings,
    WorkerSettings,
)
from nightshift.process.starting import starting
from nightshift.process.tracing.opening import open_traces
from nightshift.store import Store, open_database
from nightshift.store.databases.migrate import check_schema
from nightshift.tenants.vault import Vault, open_vault
from scheduler.duties.ageing import Ageing, AgeingConfig
from scheduler.duties.assembly import Assembly
from scheduler.duties.deletion import Deleting
from scheduler.duties.job_events import Problems, Progress
from scheduler.duties.planning import Planning, PlanningConfig
from scheduler.duties.recording import Recording, Recounting
from scheduler.duties.recovery import Recovery, RecoveryConfig
from scheduler.duties.retention import Retention, RetentionConfig
from scheduler.duties.ringing import Ringing, RingingConfig
from scheduler.duties.running_output import OutputParts
from scheduler.duties.scheduling import Scheduling
from scheduler.duties.stopping import Deadlines, Stopping, StoppingConfig
from scheduler.duties.webhook_delivery import WebhookDelivery, WebhookDeliveryConfig
from scheduler.duties.windows import Forecasts, Windows
from scheduler.input.retry_inputs import RetryInputs
from scheduler.input.sharding import ShardLimits
from scheduler.input.surveying import SurveyConfig
from scheduler.metrics import DutyMetrics
from scheduler.runtime import loop
from scheduler.runtime.duty import Duty, MayContinue
from scheduler.runtime.leadership import Elector, LeadershipConfig
from scheduler.runtime.loop import LoopConfig, Ticker
from scheduler.runtime.work_watch import WorkWatch

log = logging.getLogger(__name__)

SHARD_ROWS_MAX: Final = 2000  # in a shard of short rows, however few bytes they are


@dataclass(frozen=True)
class Parts:
    """Connections and stores that the duties share."""

    store: Store
    queue: Queue
    streams: StreamDeleter
    objects: ObjectStore
    locations: Locations
    sources: Sources
    vault: Vault


def main() -> int:
    """Runs until told to stop. Returns the exit code."""
    stop = _stop_signal()
    memory.share_free_memory()
    memory.give_back_large_blocks()
    with ExitStack() as stack:
        with starting():
            set_up_logging("scheduler")
            keep_files_private(DataSettings())
            settings = SchedulerSettings()
            parts = stack.enter_context(opened())
            _check_schema(parts.store)
            service = Service(parts, settings, stop)
            stack.enter_context(_metrics_served(service.metrics, settings))
        memory.collect_less_often()
        service.run()
    return 0


def _check_schema(store: Store) -> None:
    """Raises DatabaseUnusable. While the database is away or not migrated, this process waits to lead, and
    looks again before that.
    """
    try:
        check_schema(store.database)
    except DatabaseUnavailable as error:
        log.warning("not leading yet: %s", error, extra={"action": error.code})


@contextmanager
def _metrics_served(metrics: DutyMetrics, settings: SchedulerSettings) -> Iterator[None]:
    """Raises ConfigurationError."""
    server = MetricsServer(metrics.registry)
    try:
        if settings.scheduler_metrics_port:
            server.open_port(settings.scheduler_metrics_port, "SCHEDULER_METRICS_PORT")
        if settings.metrics_socket is not None:
            server.open_socket(settings.metrics_socket)
        yield
    finally:
        server.close()


@contextmanager
def opened() -> Iterator[Parts]:
    """Everything the settings name. Connections are made when they are first used."""
    data, places = DataSettings(), LocationSettings()
    with ExitStack() as stack:
        store = Store(open_database(data))
        stack.callback(store.close)
        queue = Queue(QueueSettings())
        stack.callback(queue.close)
        streams = StreamDeleter(QueueSettings())
        stack.callback(streams.close)
        objects = open_store(data.resolved_storage_url)
        stack.callback(objects.close)
        locations = Locations.of_settings(places, data)
        stack.callback(locations.close)
        stack.callback(open_traces("scheduler"))
        sources = Sources(objects, locations)
        vault = open_vault(data.secret_key, data.data_dir)
        yield Parts(store, queue, streams, objects, locations, sources, vault)


class Service:
    """The duties, run for as long as this process leads."""

    def __init__(self, parts: Parts, settings: SchedulerSettings, stop: threading.Event) -> None:
        """Raises ConfigurationError."""
        self._stop = stop
        self._leader_id = f"{socket.gethostname()[:20]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._tickers: Sequence[Ticker] = ()
        leadership = LeadershipConfig(
            settings.leader_ttl_s, settings.leader_attempt_s, settings.leader_trust_s
        )
        self._elector = elector = Elector(
            parts.store,
            self._leader_id,
            leadership,
            stalled=lambda: loop.stalled(self._tickers, settings.duty_stalled_s),
        )
        self.metrics = metrics = DutyMetrics(lambda: elector.is_leading)
        self._config = _loop_config(WorkerSettings())
        every = duties(
            parts,
            settings,
            elector,
            self._leader_id,
            lambda: elector.is_leading and not stop.is_set(),
            metrics,
        )
        self._work = WorkWatch(parts.store.pending, parts.store.changes(), every, lambda: elector.is_leading)
        self._tickers = [
            Ticker(duty, parts.store, lambda: elector.is_leading, self._config, self.metrics.observe)
            for duty in every
        ]

    def run(self) -> None:
        """Lead when elected, and run the duties meanwhile. Returns within seconds of `stop`."""
        log.info("scheduler started", extra={"action": "scheduler_started", "leader": self._leader_id})
        retired = threading.Event()  # leadership is given up after the work, not before
        electing = threading.Thread(target=self._elector.run, args=(retired,), name="elector", daemon=True)
        electing.start()
        loop.run(self._tickers, self._work, self._stop, self._config)
        retired.set()
        electing.join(self._config.stop_s)
        log.info("scheduler stopped", extra={"action": "scheduler_stopped"})


def _loop_config(worker: WorkerSettings) -> LoopConfig:
    """The loop's times. Where leases are short, everything that is waited for is."""
    return LoopConfig(longest_s=min(LoopConfig.longest_s, worker.lease_ttl_s))


def duties(
    parts: Parts,
    settings: SchedulerSettings,
    elector: Elector,
    leader_id: str,
    may_continue: MayContinue,
    metrics: DutyMetrics,
) -> Sequence[Duty]:
    """Every duty there is, with its limits."""
    submission, worker = SubmissionSettings(), WorkerSettings()
    store = parts.store
    survey = SurveyConfig(
        limits=ShardLimits(
            settings.shard_bytes, settings.shards_per_job_max, page_shards=settings.shards_per_page_max
        ),
        line_bytes_max=settings.line_bytes_max,
    )
    file = FileLimits(
        rows_max=settings.rows_per_file_max,
        embedding_inputs_max=settings.embedding_inputs_per_file_max,
        shard_bytes=settings.shard_bytes,
        shard_rows=SHARD_ROWS_MAX,
    )
    planning = PlanningConfig(
        file=file,
        survey=survey,
        announced_models=submission.announced_models,
        default_quotas=QuotaSettings().defaults,
    )
    writing = PartDependencies(store, parts.objects, parts.sources, parts.locations, settings.line_bytes_max)
    stopping = StoppingConfig(grace_s=worker.stop_grace_s, notice_s=2 * worker.heartbeat_s)
    recovery = RecoveryConfig(
        attempts_max=settings.attempts_max,
        lease_ttl_s=worker.lease_ttl_s,
        worker_silent_s=3 * worker.lease_ttl_s,
    )
    retention = RetentionConfig(settings.retention_interval_s, settings.orphan_age_s)
    ageing = AgeingConfig(RetentionSettings(), round_interval_s=settings.retention_interval_s)
    egress = Egress(_egress_config(submission))
    catalogue = CachedCatalogue(submission.announced_models, snapshot=store.snapshot)
    submitter = Submitter(parts.locations, parts.vault, catalogue, submission, QuotaSettings().defaults)
    return [
        Planning(
            store,
            parts.queue,
            parts.sources,
            parts.locations,
            planning,
            lambda: elector.lead,
            RetryInputs(store, parts.objects, parts.sources, planning.survey.line_bytes_max),
            may_continue,
        ),
        Ringing(store, parts.queue, RingingConfig(ring_after_s=settings.ring_after_s)),
        Recovery(store, recovery),
        Deadlines(store),
        Stopping(store, stopping),
        Windows(store),
        Forecasts(store),
        OutputParts(writing, leader_id, lambda: elector.lead, may_continue=may_continue),
        Assembly(writing, lambda: elector.lead, may_continue=may_continue),
        Retention(store, parts.objects, retention, may_continue),
        Ageing(store, parts.streams, ageing, may_continue),
        Deleting(store, parts.objects, parts.streams, may_continue=may_continue),
        Recounting(store, settings.retention_interval_s),
        Recording(store),
        Problems(store),
        WebhookDelivery(store, parts.vault, egress, observe=metrics.webhook_attempted),
        Progress(store, settings.webhook_progress_interval_s),
        Scheduling(store, submitter, observe=metrics.run_started, may_continue=may_continue),
        WebhookDelivery(
            store,
            parts.vault,
            egress,
            WebhookDeliveryConfig.for_progress(),
            observe=metrics.webhook_attempted,
        ),
    ]


def _egress_config(settings: SubmissionSettings) -> EgressConfig:
    config = egress_config(settings)
    try:
        allowed = config.allowed_networks
    except ValueError as error:
        raise ConfigurationError(
            f"NIGHTSHIFT_WEBHOOK_ALLOW_CIDRS: {error}", param="WEBHOOK_ALLOW_CIDRS"
        ) from error
    if allowed:
        log.warning(
            "webhooks may reach networks that are not public",
            extra={"action": "egress_allowed", "networks": ",".join(map(str, allowed))},
        )
    return config


def _stop_signal() -> threading.Event:
    """An event that SIGTERM and SIGINT set. A second signal has its default effect."""
    stop = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    return stop


if __name__ == "__main__":
    sys.exit(main())
