"""The number of threads that compute a step on a CPU, where other processes want its cores too.

A system that divides its cores between services (cgroups, sessions) gives two threads beside a busy neighbour
one core between them; one thread then has that core to itself. A system that divides between threads gives
two more than one. Which it is, is tried: fewer threads compute for a moment, and stay if they were given
nearly as much.
"""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kernels.native.build import load_kernels
from .device.native_calls import FIXED_ORDER

log = logging.getLogger(__name__)

WINDOW_S = 0.2
BUSY_MIN = 0.8
"""Share of a window in which steps are computed, for it to count."""
WAITED_MIN = 0.1
"""Cores that the threads of a step waited for, on average, for others to be called neighbours."""
WORTH = 0.85
"""Share of the cores given to all threads that fewer must be given to stay: they lose nothing to one
another."""
HOLD_S, HOLD_MAX_S = 1.0, 16.0
"""Seconds between two tries; doubled, up to the longer one, each time that nothing came of it."""

TASKS = Path("/proc/self/task")
HELPER_NAME = "nightshift-team"
"""Name that `team.h` gives its threads."""


@dataclass(frozen=True, slots=True)
class Window:
    """Cores that the threads of steps were given for some time, and cores that they waited for."""

    cores: float
    waited: float


class ThreadPolicy:
    """Decides by what is noted; reads no clock."""

    def __init__(self, threads_max: int) -> None:
        self.threads_max = threads_max
        self.threads = threads_max
        """Threads of the next steps."""
        self._is_trying = False
        self._by_all: Window | None = None
        """The last window of all threads, where they had neighbours."""
        self._by_fewer: Window | None = None
        """The last window of fewer, where they were as good."""
        self._fewer = threads_max
        self._hold_s, self._next_try_s = HOLD_S, 0.0

    def note(self, window: Window, now_s: float) -> None:
        """A window of `threads` has ended."""
        if self.threads == self.threads_max:
            self._note_all(window, now_s)
        else:
            self._note_fewer(window, now_s)

    def _note_all(self, window: Window, now_s: float) -> None:
        was_trying, self._is_trying = self._is_trying, False
        if window.waited < WAITED_MIN:
            self._by_fewer, self._hold_s, self._next_try_s = None, HOLD_S, now_s
            return
        if was_trying and self._by_fewer is not None:
            if self._by_fewer.cores >= WORTH * window.cores:
                self._compute_by(self._fewer, now_s)
            else:
                self._nothing_came_of_it(now_s)
            return
        if now_s >= self._next_try_s:
            self._by_all, self._is_trying = window, True
            self._fewer = max(1, min(self.threads_max - 1, round(window.cores)))
            self.threads = self._fewer

    def _note_fewer(self, window: Window, now_s: float) -> None:
        was_trying, self._is_trying = self._is_trying, False
        if was_trying and self._by_all is not None and window.cores < WORTH * self._by_all.cores:
            self.threads = self.threads_max
            self._nothing_came_of_it(now_s)
            return
        if was_trying:
            self._hold_s = HOLD_S
            self._compute_by(self._fewer, now_s)
        self._by_fewer = window
        if now_s >= self._next_try_s:
            self._is_trying, self.threads = True, self.threads_max

    def _compute_by(self, threads: int, now_s: float) -> None:
        self.threads, self._next_try_s = threads, now_s + HOLD_S

    def _nothing_came_of_it(self, now_s: float) -> None:
        self._by_fewer, self._next_try_s = None, now_s + self._hold_s
        self._hold_s = min(2 * self._hold_s, HOLD_MAX_S)


class StepThreads:
    """Sets the number of threads of the calling thread's steps, as `ThreadPolicy` decides."""

    def __init__(self, runtime: Any = None, tasks: Path = TASKS) -> None:
        """`runtime` has OpenMP's functions; None: the one of our kernels."""
        self._runtime: Any = runtime or load_kernels("decoder", FIXED_ORDER)
        self._tasks = tasks
        self._policy: ThreadPolicy | None = None
        self._begun_s = self._computed_s = 0.0
        self._spent: dict[int, tuple[int, int]] = {}
        self._num_tasks = 0
        self._task_ids: list[int] = []

    def ended(self, seconds: float, now_s: float) -> None:
        """A step that took so long has ended at `now_s` of a clock that is never put back."""
        self._computed_s += seconds
        if now_s - self._begun_s < WINDOW_S or self._runtime is None:
            return
        if self._policy is None:
            self._policy = ThreadPolicy(int(self._runtime.omp_get_max_threads()))
        spent = self._read() if self._policy.threads_max > 1 else {}
        if self._spent and spent and self._computed_s >= BUSY_MIN * (now_s - self._begun_s):
            self._note(self._policy, spent, now_s)
        self._spent, self._begun_s, self._computed_s = spent, now_s, 0.0

    def _note(self, policy: ThreadPolicy, spent: dict[int, tuple[int, int]], now_s: float) -> None:
        ran, waited = (
            sum(spent[task][kind] - self._spent[task][kind] for task in spent if task in self._spent)
            / (1e9 * (now_s - self._begun_s))
            for kind in (0, 1)
        )
        threads = policy.threads
        policy.note(Window(ran, waited), now_s)
        if policy.threads != threads:
            log.debug("%d threads were given %.2f cores: now %d compute", threads, ran, policy.threads)
            self._runtime.omp_set_num_threads(policy.threads)

    def _read(self) -> dict[int, tuple[int, int]]:
        """Nanoseconds that each thread ran, and waited to run; empty where the system does not say."""
        try:
            self._find_tasks()
            return {task: self._read_task(task) for task in self._task_ids}
        except (OSError, ValueError):
            return {}

    def _read_task(self, task: int) -> tuple[int, int]:
        """https://docs.kernel.org/scheduler/sched-stats.html, at its end."""
        ran, waited, *_ = (self._tasks / str(task) / "schedstat").read_text().split()
        return int(ran), int(waited)

    def _find_tasks(self) -> None:
        """The calling thread and the teams' helpers."""
        names = [entry.name for entry in self._tasks.iterdir()]
        if len(names) != self._num_tasks:
            self._num_tasks = len(names)
            helpers = [int(name) for name in names if self._is_helper(name)]
            self._task_ids = [threading.get_native_id(), *helpers]

    def _is_helper(self, task: str) -> bool:
        try:
            return (self._tasks / task / "comm").read_text().strip() == HELPER_NAME
        except OSError:  # it has ended
            return False
