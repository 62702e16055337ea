"""CPU time and peak memory of a process and its children, and the load of other processes.

Linux only (/proc), standard library only: peers' environments import it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot, over all cores."""

    at: float
    busy: float
    own: float

    def other_share_since(self, earlier: CpuTimes, num_cpus: int | None = None) -> float:
        """Share of the machine's CPU time that processes outside the measured tree used, 0 to 1."""
        capacity = (self.at - earlier.at) * (num_cpus or os.cpu_count() or 1)
        if capacity <= 0:
            return 0.0
        others = (self.busy - earlier.busy) - (self.own - earlier.own)
        return min(1.0, max(0.0, others / capacity))


def cpu_times(pid: int | None = None) -> CpuTimes:
    """Now, with `own` counted for a process (default: this one) and everything it started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    busy = (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND
    own = sum(_cpu_ticks(process) for process in process_tree(pid or os.getpid())) / TICKS_PER_SECOND
    return CpuTimes(time.monotonic(), busy, own)


def peak_rss_bytes(pid: int | None = None) -> int:
    """VmHWM of a process and its living children, added up: an upper bound of their common peak."""
    return sum(peak_rss_of(process) for process in process_tree(pid or os.getpid()))


def peak_rss_of(pid: int) -> int:
    """VmHWM of one process, in bytes; 0: it has gone."""
    return _status_kib(pid, "VmHWM") * 1024


def process_tree(pid: int) -> Iterator[int]:
    """The process and its descendants that are alive."""
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        try:
            for thread in Path(f"/proc/{process}/task").iterdir():
                waiting += [int(child) for child in (thread / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile


def _cpu_ticks(pid: int) -> int:
    """User and system time of a process and of its children that have ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name in parentheses may contain spaces; utime, stime, cutime, cstime are fields 14 to 17.
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])


def _status_kib(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)
