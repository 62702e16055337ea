"""What is kept running, and how it ends: the types between a supervisor and its callers.

Pure: no process is touched here.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Final

from nightshift.backoff import Backoff

SIGNAL_EXIT_BASE: Final = 128  # a shell's way to say "ended by signal n"
NO_RESTART_EXIT: Final = 74  # it drained on request, and is not to be started again
NO_RESTART_LATE_EXIT: Final = 76  # likewise, and it ran out of time
UNAVAILABLE_EXIT: Final = 75  # EX_TEMPFAIL of sysexits.h: what it needs to start is away, and may come back
CONFIGURATION_EXIT: Final = 78  # EX_CONFIG of sysexits.h: starting the same thing again cannot help


@dataclass(frozen=True)
class Launch:
    """What is started: a command line, and variables on top of our own environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Child:
    """A program to keep running."""

    name: str
    launch: Callable[[], Launch]  # asked at every start
    grace_s: float = 10.0  # from SIGTERM to SIGKILL
    log_path: Path | None = None  # where its output goes; None: where ours goes


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a child ended."""

    name: str
    pid: int
    launch: Launch
    returncode: int  # negative: the signal that ended it
    uptime_s: float
    in_a_row: int  # exits without `RestartBackoff.stable_after_s` of uptime between them, this one included

    @property
    def was_requested(self) -> bool:
        """Whether the child ended in order, on a request."""
        return self.returncode in (0, NO_RESTART_EXIT)

    @property
    def asks_for_no_restart(self) -> bool:
        """Whether the child said that it is not to be started again."""
        return self.returncode in (NO_RESTART_EXIT, NO_RESTART_LATE_EXIT)

    @property
    def is_configuration(self) -> bool:
        """Whether the child said that it cannot run as it is configured."""
        return self.returncode == CONFIGURATION_EXIT

    @property
    def is_dependency_missing(self) -> bool:
        """Whether the child said that it cannot start before something else is back."""
        return self.returncode == UNAVAILABLE_EXIT

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) {describe_exit(self.returncode)} after {self.uptime_s:.1f} s"


@dataclass(frozen=True)
class RestartBackoff(Backoff):
    """How long a supervisor waits before it starts a child again."""

    first_s: float = 0.5
    longest_s: float = 30.0
    stable_after_s: float = 60.0  # having lived so long, a child starts from `first_s` again


class AfterExit(Enum):
    """What a supervisor does after a child has ended."""

    RESTART = auto()  # after a wait that grows with the exits in a row
    RESTART_SOON = auto()  # after the shortest wait, uncounted: the child was not the cause
    LEAVE = auto()  # it is not started again; the others go on
    GIVE_UP = auto()  # `watch` ends


OnExit = Callable[[ChildExit], AfterExit]


def restart_always(ended: ChildExit) -> AfterExit:
    return AfterExit.RESTART


def describe_exit(returncode: int) -> str:
    """A return code in words."""
    if returncode >= 0:
        return f"exited with {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"
