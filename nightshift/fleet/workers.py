"""Workers as the rest of the service sees them. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final


class Capacity(StrEnum):
    """What kind of machine a worker runs on. A job asks for one of them, or takes `any`."""

    SPOT = "spot"  # cheap, and taken away with little notice
    ON_DEMAND = "on_demand"


# The exit codes by which a worker process says why it ended itself.
EXIT_ENGINE_DIED: Final = 70  # EX_SOFTWARE
EXIT_DRAIN_TOO_SLOW: Final = 71
EXIT_STUCK_STEP: Final = 72
EXIT_DEAF: Final = 73


class DeathCause(StrEnum):
    """Why a worker process is no more."""

    DRAINED = "drained"  # it was asked to, and handed everything back
    DRAIN_TOO_SLOW = "drain_too_slow"  # it was asked to, and ran out of time
    DEAF = "deaf"  # it no longer heard the queue and ended itself: no row's doing
    ENGINE_DIED = "engine_died"  # an exception escaped a step
    STUCK_STEP = "stuck_step"  # a step did not end, and it ended itself
    OUT_OF_MEMORY = "out_of_memory"  # the kernel counted an oom_kill, or its container ended with 137
    ABORTED = "aborted"  # SIGABRT
    SIGNAL = "signal"  # another signal that a process brings upon itself: SIGSEGV, SIGBUS, SIGILL, SIGFPE
    EXITED = "exited"  # with an exit code that says nothing
    LEFT_UNASKED = "left_unasked"  # with what it held, and as one that was told to leave: nobody had told it
    KILLED = "killed"  # by a signal from outside, which nobody explains
    LEASE_EXPIRED = "lease_expired"  # nobody saw it: it stopped renewing
    UNHEARD = "unheard"  # it may well live: the database was away, so nobody could renew

    @property
    def is_crash(self) -> bool:
        """Whether what was running may have had a part in it."""
        return self not in _NO_CRASH

    @property
    def is_explained(self) -> bool:
        """Whether the process itself failed, which a row may be blamed for sooner than for a mere absence."""
        return self.is_crash and self not in _UNEXPLAINED


_NO_CRASH: Final = (DeathCause.DRAINED, DeathCause.DRAIN_TOO_SLOW, DeathCause.DEAF, DeathCause.UNHEARD)
_UNEXPLAINED: Final = (DeathCause.LEFT_UNASKED, DeathCause.KILLED, DeathCause.LEASE_EXPIRED)


class WorkerState(StrEnum):
    STARTING = "starting"  # loading models
    READY = "ready"
    DRAINING = "draining"  # takes nothing new
    STOPPED = "stopped"


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
    drain_requested_at: datetime | None = None
    ended_at: datetime | None = None  # somebody saw its process end
    ended_cause: DeathCause | None = None
