"""Workers, their states, and the causes of their exits."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.fleet.figures import WorkerFigures


class Capacity(StrEnum):
    """The kind of machine a worker runs on; a job names one, or `any`."""

    SPOT = "spot"  # reclaimed at short notice
    ON_DEMAND = "on_demand"


@dataclass(frozen=True)
class Machine:
    """The properties of a worker's machine that decide which jobs may run on it."""

    capacity: Capacity = Capacity.ON_DEMAND
    pools: tuple[str, ...] = ()
    """The pools to which it belongs. It also runs jobs that name none."""


POOL_PATTERN: Final = r"^[0-9A-Za-z][0-9A-Za-z._-]{0,62}$"


# Why a worker process ended itself.
EXIT_ENGINE_DIED: Final = 70  # EX_SOFTWARE
EXIT_DRAIN_TOO_SLOW: Final = 71
EXIT_STUCK_STEP: Final = 72
EXIT_QUEUE_CONNECTION_LOST: Final = 73
EXIT_STUCK_LOAD: Final = 77


class ExitCause(StrEnum):
    """The cause of a worker process's end."""

    DRAINED = "drained"  # on request, with everything handed back
    DRAIN_TOO_SLOW = "drain_too_slow"  # on request, past its time limit
    QUEUE_CONNECTION_LOST = "deaf"  # no messages arrived although some waited
    ENGINE_DIED = "engine_died"  # an exception escaped a step
    STUCK_STEP = "stuck_step"  # a step did not end
    STUCK_LOAD = "stuck_load"  # loading a lazy model did not end
    OUT_OF_MEMORY = "out_of_memory"  # the kernel's oom_kill, or exit code 137
    ABORTED = "aborted"  # SIGABRT
    SIGNAL = "signal"  # SIGSEGV, SIGBUS, SIGILL or SIGFPE
    EXITED = "exited"  # with any other exit code
    UNREQUESTED_DRAIN = "left_unasked"  # a drain's exit code, without a request and with leases held
    KILLED = "killed"  # by SIGKILL or another signal from outside
    LEASE_EXPIRED = "lease_expired"  # no exit was seen; it stopped renewing
    DATABASE_UNAVAILABLE = "unheard"  # no worker could renew; this one may be alive

    @property
    def is_crash(self) -> bool:
        """Whether a running row may have caused it."""
        return self not in _NO_CRASH

    @property
    def is_explained(self) -> bool:
        """Whether the process itself failed. Other crashes may be a reclaimed machine."""
        return self.is_crash and self not in _UNEXPLAINED


_NO_CRASH: Final = (
    ExitCause.DRAINED,
    ExitCause.DRAIN_TOO_SLOW,
    ExitCause.QUEUE_CONNECTION_LOST,
    ExitCause.STUCK_LOAD,
    ExitCause.DATABASE_UNAVAILABLE,
)
_UNEXPLAINED: Final = (ExitCause.UNREQUESTED_DRAIN, ExitCause.KILLED, ExitCause.LEASE_EXPIRED)


class WorkerState(StrEnum):
    STARTING = "starting"  # loading models
    READY = "ready"
    DRAINING = "draining"  # claims nothing new
    STOPPED = "stopped"


class NoticeKind(StrEnum):
    """A cloud's notice about one of its machines."""

    REBALANCE = "rebalance"  # an interruption is likely
    INTERRUPTION = "interruption"  # an interruption is certain


@dataclass(frozen=True)
class MachineNotice:
    """A worker's machine is about to be taken away."""

    kind: NoticeKind
    received_at: datetime  # when it was recorded first
    ends_at: datetime | None = None  # when the machine goes, by the cloud's clock; None: it does not say


@dataclass(frozen=True, kw_only=True)
class Worker:
    id: str
    host: str
    pid: int
    state: WorkerState
    models: tuple[str, ...]
    started_at: datetime
    heartbeat_at: datetime
    capacity: Capacity = Capacity.ON_DEMAND
    pools: tuple[str, ...] = ()
    drain_requested_at: datetime | None = None
    notice: MachineNotice | None = None
    """The notice at the last heartbeat; None: there is none, or it was withdrawn."""
    ended_at: datetime | None = None  # its process was seen to end
    ended_cause: ExitCause | None = None
    warm_models: tuple[str, ...] | None = None
    """The models of `models` that are loaded or being loaded. None: all."""
    figures: WorkerFigures | None = None
    """The figures at the last heartbeat. None: it has told none."""

    @property
    def warm(self) -> tuple[str, ...]:
        return self.models if self.warm_models is None else self.warm_models
