"""A Celery worker as a supervisor's child: its command line, and the handling of its exit.

Every start has a new worker id, which tells a dead worker's leases from its successor's.
"""

import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.broker.queue import Queue
from nightshift.cli.processes.children import AfterExit, Child, ChildExit, Launch
from nightshift.cli.processes.gpus import WorkerShare
from nightshift.errors import DatabaseUnavailable, DatabaseUnusable, NightshiftError
from nightshift.fleet.workers import (
    EXIT_DRAIN_TOO_SLOW,
    EXIT_ENGINE_DIED,
    EXIT_QUEUE_CONNECTION_LOST,
    EXIT_STUCK_LOAD,
    EXIT_STUCK_STEP,
    ExitCause,
    WorkerState,
)
from nightshift.jobs.ids import new_id
from nightshift.jobs.priorities import HELD_MAX
from nightshift.jobs.shard import Ring
from nightshift.lifecycle.recovery import LEASES_PER_WORKER_MAX, release_worker
from nightshift.process.exit_codes import NO_RESTART_EXIT, NO_RESTART_LATE_EXIT, SIGNAL_EXIT_BASE
from nightshift.process.settings import WorkerSettings
from nightshift.store import Store, Transaction

_BY_EXIT_CODE: Final = {
    0: ExitCause.DRAINED,
    NO_RESTART_EXIT: ExitCause.DRAINED,
    NO_RESTART_LATE_EXIT: ExitCause.DRAIN_TOO_SLOW,
    EXIT_ENGINE_DIED: ExitCause.ENGINE_DIED,
    EXIT_DRAIN_TOO_SLOW: ExitCause.DRAIN_TOO_SLOW,
    EXIT_STUCK_STEP: ExitCause.STUCK_STEP,
    EXIT_STUCK_LOAD: ExitCause.STUCK_LOAD,
    EXIT_QUEUE_CONNECTION_LOST: ExitCause.QUEUE_CONNECTION_LOST,
    # A container runtime's exit code for a process over its memory limit.
    SIGNAL_EXIT_BASE + signal.SIGKILL: ExitCause.OUT_OF_MEMORY,
}
_BY_SIGNAL: Final[dict[int, ExitCause]] = {
    signal.SIGTERM: ExitCause.DRAINED,  # it handles SIGTERM itself once it may hold leases
    signal.SIGABRT: ExitCause.ABORTED,
    signal.SIGSEGV: ExitCause.SIGNAL,
    signal.SIGBUS: ExitCause.SIGNAL,
    signal.SIGILL: ExitCause.SIGNAL,
    signal.SIGFPE: ExitCause.SIGNAL,
}  # other signals come from outside
_ON_LEAVING: Final = (ExitCause.DRAINED, ExitCause.DRAIN_TOO_SLOW, ExitCause.QUEUE_CONNECTION_LOST)


def cause_of(returncode: int, oom_kills: int) -> ExitCause:
    """`oom_kills`: the kernel's out-of-memory kills during the worker's life."""
    if returncode >= 0:
        return _BY_EXIT_CODE.get(returncode, ExitCause.EXITED)
    if returncode == -signal.SIGKILL and oom_kills > 0:
        return ExitCause.OUT_OF_MEMORY
    return _BY_SIGNAL.get(-returncode, ExitCause.KILLED)


def unrequested(cause: ExitCause) -> ExitCause:
    """The cause where the worker was not told to leave and held leases: a row may have made it exit with the
    code of a drain. Pure.
    """
    return ExitCause.UNREQUESTED_DRAIN if cause in _ON_LEAVING else cause


def count_oom_kills(root: Path = Path("/")) -> int:
    """The kernel's out-of-memory kills in this control group, else on this machine; 0 if unknown."""
    for path in (*_memory_events(root), root / "proc/vmstat"):
        try:
            words = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
            return int(words["oom_kill"])
        except (OSError, KeyError, ValueError):
            continue
    return 0


def _memory_events(root: Path) -> list[Path]:
    """The control group's counters: version 2, then version 1."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    top = root / "sys/fs/cgroup"
    v2 = [top / path.lstrip("/") / "memory.events" for _, names, path in groups if not names]
    v1 = [
        top / "memory" / path.lstrip("/") / "memory.oom_control"
        for _, names, path in groups
        if "memory" in names.split(",")
    ]
    return v2 + v1


log = logging.getLogger(__name__)

WORKER_ID: Final = "NIGHTSHIFT_WORKER_ID"
APP: Final = "workers.app"
POOL: Final = "workers.pool:EnginePool"
DRAIN_MARGIN_S: Final = 5.0  # on top of the worker's own limit, which it keeps by itself
EXITS_IN_A_ROW_MAX: Final = 5  # then this process ends: its supervisor may use another machine
RINGS_MAX: Final = 500  # per exit; the scheduler sends the rest
RELEASE_RETRY_MAX_S: Final = 5.0  # while the database is away; after that, the leases expire
RELEASE_RETRY_S: Final = 0.5


def worker_children(
    settings: WorkerSettings, shares: Sequence[WorkerShare], *, app: str = APP, pool: str = POOL
) -> Sequence[Child]:
    """A worker for each share of the machine. Tests replace `app` and `pool`, the Celery application and its
    pool. With a metrics port each worker has its own, in their order.
    """
    names = ["worker"] if len(shares) == 1 else [f"worker-{number + 1}" for number in range(len(shares))]
    port = settings.worker_metrics_port
    return [
        _child(settings, name, share, port and port + number, app, pool)
        for number, (name, share) in enumerate(zip(names, shares, strict=True))
    ]


def _child(settings: WorkerSettings, name: str, share: WorkerShare, port: int, app: str, pool: str) -> Child:
    def launch() -> Launch:
        worker_id = new_id("wrk")
        environment = {
            WORKER_ID: worker_id,
            "NIGHTSHIFT_MODELS": ",".join(settings.models),
            "NIGHTSHIFT_LAZY_MODELS": ",".join(settings.lazy_models),
            "NIGHTSHIFT_UPSTREAMS": ",".join(settings.upstreams),
            "CELERY_CUSTOM_WORKER_POOL": pool,
            "NIGHTSHIFT_WORKER_METRICS_PORT": str(port),
            "TQDM_DISABLE": "1",  # progress bars fill the log
            **share.environment,
        }
        messages_max = settings.online_slots + HELD_MAX
        return Launch(celery_command(worker_id, messages_max, app), environment, share.cpus)

    return Child(name=name, launch=launch, grace_s=settings.drain_s + DRAIN_MARGIN_S)


def celery_command(worker_id: str, messages_max: int, app: str = APP) -> tuple[str, ...]:
    """`messages_max`: the messages it may hold unacknowledged."""
    return (
        *(sys.executable, "-P", "-m", "celery", "--app", app, "--quiet", "worker"),
        *("--pool", "custom", "--queues", "online,bulk", "--concurrency", str(messages_max)),
        *("--hostname", f"{worker_id}@%h", "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    )


class WorkerExitHandler:
    """Handles a worker's exit: releases its shards, rings for them, and decides on a restart."""

    def __init__(
        self,
        store: Store,
        queue: Queue,
        attempts_max: int,
        *,
        workers: int = 1,
        oom_kills: Callable[[], int] = count_oom_kills,
        pause: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._queue = queue
        self._attempts_max = attempts_max
        self._workers = workers  # that have not ended for good
        self._oom_kills = oom_kills
        self._pause, self._clock_s = pause, clock_s
        self._oom_kills_before = oom_kills()
        self.gave_up_on: ChildExit | None = None

    def __call__(self, ended: ChildExit) -> AfterExit:
        recorded = self.record_exit(ended)
        if recorded.was_asked_to_drain:
            return self._left()  # the operator drained it
        if ended.is_configuration:
            self.gave_up_on = ended
            return AfterExit.GIVE_UP  # that of the others is the same
        if recorded.is_external:
            return AfterExit.RESTART_SOON
        if ended.is_dependency_missing:
            return AfterExit.RESTART
        if ended.in_a_row >= EXITS_IN_A_ROW_MAX:
            self.gave_up_on = ended
            return self._left()
        return AfterExit.RESTART

    def _left(self) -> AfterExit:
        """A worker stays away; the others go on."""
        self._workers -= 1
        return AfterExit.LEAVE if self._workers > 0 else AfterExit.GIVE_UP

    def record_exit(self, ended: ChildExit, *, was_told: bool = False) -> "RecordedExit":
        """Records the exit's cause, releases the leases, and rings. `was_told`: the supervisor had asked it
        to stop.
        """
        oom_kills = self._oom_kills()
        cause = cause_of(ended.returncode, oom_kills - self._oom_kills_before)
        self._oom_kills_before = oom_kills
        worker_id = ended.launch.environment[WORKER_ID]
        try:
            released = self._retrying(lambda tx: self._release(tx, worker_id, cause, was_told))
        except (DatabaseUnavailable, DatabaseUnusable) as error:
            log.warning(
                "leases of a worker that has ended not released; they will run out",
                extra={"action": "release_failed", "worker": worker_id, "reason": error.message},
            )
            return RecordedExit(cause, was_asked_to_drain=ended.asks_for_no_restart)
        self._ring(released.rings)
        has_left = released.cause is ExitCause.DRAINED
        log.info(
            "a worker has left" if has_left else "leases of a dead worker released",
            extra={
                "action": "worker_released",
                "worker": worker_id,
                "cause": released.cause,
                "shards": released.shards,
            },
        )
        return RecordedExit(released.cause, released.was_asked_to_drain, released.was_isolating)

    def _retrying(self, release: "Callable[[Transaction], _Released]") -> "_Released":
        """Raises DatabaseUnavailable when that lasts longer than `RELEASE_RETRY_MAX_S`."""
        ends_at_s = self._clock_s() + RELEASE_RETRY_MAX_S
        while True:
            try:
                return self._store.run(release)
            except DatabaseUnavailable:
                if self._clock_s() >= ends_at_s:
                    raise
            self._pause(RELEASE_RETRY_S)

    def _release(self, tx: Transaction, worker_id: str, cause: ExitCause, was_told: bool) -> "_Released":
        now = tx.now()
        held = tx.leases.of_worker(worker_id, LEASES_PER_WORKER_MAX)
        was_asked = tx.workers.is_drain_requested(worker_id)
        if held and not (was_told or was_asked or tx.workers.state(worker_id) in _LEAVING):
            cause = unrequested(cause)
        recovered = release_worker(tx, worker_id, self._attempts_max, now, cause)
        tx.workers.ended(worker_id, cause, now)
        return _Released(
            cause,
            recovered.shards,
            tuple(tx.outbox.waiting(now, RINGS_MAX)) if recovered.retried else (),
            was_asked,
            any(lease.is_isolating for lease in held),
        )

    def _ring(self, rings: Sequence[Ring]) -> None:
        """Sooner than the scheduler, which sends them within two seconds."""
        if not rings:
            return
        try:
            self._queue.ring(rings)
            with self._store.transaction() as tx:
                tx.outbox.delete([ring.id for ring in rings])
        except NightshiftError as error:
            log.warning("not rung", extra={"action": "ring_failed", "reason": error.message})


@dataclass(frozen=True)
class _Released:
    """An ended worker's released leases."""

    cause: ExitCause
    shards: int
    rings: Sequence[Ring]
    was_asked_to_drain: bool
    was_isolating: bool


@dataclass(frozen=True)
class RecordedExit:
    """The recorded end of a worker."""

    cause: ExitCause
    was_asked_to_drain: bool = False  # by `nightshift workers drain`
    was_isolating: bool = False  # it held a shard or request whose rows run alone

    @property
    def is_external(self) -> bool:
        return self.was_isolating or self.cause in _FROM_OUTSIDE


# The states of a worker that was asked to stop.
_LEAVING: Final = (WorkerState.DRAINING, WorkerState.STOPPED)
_FROM_OUTSIDE: Final = frozenset({ExitCause.DRAINED, ExitCause.DRAIN_TOO_SLOW, ExitCause.KILLED})
