"""The types between a supervisor and its callers."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from nightshift.jobs.backoff import Backoff
from nightshift.process.exit_codes import (
    CONFIGURATION_EXIT,
    NO_RESTART_EXIT,
    NO_RESTART_LATE_EXIT,
    UNAVAILABLE_EXIT,
)


@dataclass(frozen=True)
class Launch:
    """A command line and its additions to our environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: frozenset[int] = frozenset()  # cores that it may use; empty: ours


@dataclass(frozen=True, kw_only=True)
class Child:
    name: str
    launch: Callable[[], Launch]  # called at every start
    grace_s: float = 10.0  # from SIGTERM to SIGKILL
    log_path: Path | None = None  # None: our own output


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    name: str
    pid: int
    launch: Launch
    returncode: int  # negative: the signal that ended it
    uptime_s: float
    in_a_row: int  # exits since `RestartBackoff.stable_after_s` of uptime, including this one

    @property
    def was_requested(self) -> bool:
        return self.returncode in (0, NO_RESTART_EXIT)

    @property
    def asks_for_no_restart(self) -> bool:
        return self.returncode in (NO_RESTART_EXIT, NO_RESTART_LATE_EXIT)

    @property
    def is_configuration(self) -> bool:
        return self.returncode == CONFIGURATION_EXIT

    @property
    def is_dependency_missing(self) -> bool:
        return self.returncode == UNAVAILABLE_EXIT

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) {describe_exit(self.returncode)} after {self.uptime_s:.1f} s"


@dataclass(frozen=True)
class RestartBackoff(Backoff):
    first_s: float = 0.5
    longest_s: float = 30.0
    stable_after_s: float = 60.0  # after this uptime, delays begin at `first_s` again


class AfterExit(Enum):
    RESTART = auto()  # after a delay that grows with the exits in a row
    RESTART_SOON = auto()  # after the shortest delay, uncounted: the child was not the cause
    LEAVE = auto()  # no restart; the other children go on
    GIVE_UP = auto()  # `watch` ends


OnExit = Callable[[ChildExit], AfterExit]


def restart_always(ended: ChildExit) -> AfterExit:
    return AfterExit.RESTART


def describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"
