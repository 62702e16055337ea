"""Work that may cost too much, in a child process that the kernel ends when it does."""

import math
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

MIB = 2**20
PRELOADED = [
    f"tests.security.costly.{name}"
    for name in ("test_costly_arrow", "test_costly_bodies", "test_costly_inputs", "test_linear_parsing")
]
"""The modules with the tests' work, and all that they import: 0.6 s of CPU in each process otherwise."""

CALIBRATION_LOOPS = 500_000
CALIBRATION_CPU_S = 0.015
"""CPU time of the calibration on the machines for which the tests' times are written: Xeon and EPYC of 2022
to 2024.
"""


def slowness() -> float:
    """How many times as much CPU time this machine needs now; at least 1. A throttled one needs several."""
    start_s = time.thread_time()
    total = 0
    for number in range(CALIBRATION_LOOPS):
        total += number
    return max(1.0, (time.thread_time() - start_s) / CALIBRATION_CPU_S)


def in_child(work: Callable[..., Any], *arguments: Any, cpu_s: int = 5, memory_bytes: int = 2**40) -> Any:
    """The result of `work`, in a process with so much CPU time and address space beyond what it starts with.

    CPU time, since a busy machine does not change it; on a slow one as many times as much. The process is
    forked from a clean one that has only imported `PRELOADED`. Raises BrokenProcessPool or MemoryError
    beyond.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_limited, work, arguments, cpu_s, memory_bytes).result()


def _limited(work: Callable[..., Any], arguments: tuple[Any, ...], cpu_s: int, memory_bytes: int) -> Any:
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = int(used.ru_utime + used.ru_stime) + 1
    cpu_s_max = spent_s + math.ceil(cpu_s * slowness())
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max))
    with open("/proc/self/statm", encoding="ascii") as pages:
        held_bytes = int(pages.read().split()[0]) * resource.getpagesize()
    limit = held_bytes + memory_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))  # processes that this one starts set their own
    return work(*arguments)
