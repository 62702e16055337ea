"""The cause of a worker's exit, as seen by its supervisor."""

import signal
from pathlib import Path
from typing import Final

from nightshift.fleet.workers import (
    EXIT_DRAIN_TOO_SLOW,
    EXIT_ENGINE_DIED,
    EXIT_QUEUE_CONNECTION_LOST,
    EXIT_STUCK_LOAD,
    EXIT_STUCK_STEP,
    ExitCause,
)
from nightshift.process.exit_codes import NO_RESTART_EXIT, NO_RESTART_LATE_EXIT, SIGNAL_EXIT_BASE

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
