"""Measures the CPU time of an idle service's scheduler."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.reliability.services import Database, service_on
from benchmarks.report import Figure

SETTLED_S = 10.0  # the worker has registered, the first passes are over


def measure(database: Database, seconds: int) -> Iterator[Figure]:
    with service_on(database) as service:
        pid = service.pid("scheduler-1")
        time.sleep(SETTLED_S)
        before_s, began_s = _cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        used = (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    yield Figure(f"CPU time of an idle scheduler, of one core, over {seconds} s", 100 * used, "%", 1)


def _cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
