"""Threads that read and decode images beside the thread that computes. All in flight is bounded."""

import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

THREADS: Final = 16  # they wait for stores and the network; each holds the file of one image, at most
DECODES_MAX: Final = 4  # threads that decode; the others have read ahead and wait for them
PIXELS_DECODED_MAX: Final = 80_000_000  # at a time, in all threads: about 8 bytes each while one is decoded
_LAST: Final = 1_000  # after every request


def decodes_at_once() -> int:
    """As many as there are cores: more would take them from the thread that computes."""
    return min(DECODES_MAX, len(os.sched_getaffinity(0)))


class Budget:
    """So many may be held at a time. What is more than all of it is held alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Waits until there is room."""
        amount = min(amount, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._held + amount <= self._most)
            self._held += amount
        try:
            yield
        finally:
            with self._changed:
                self._held -= amount
                self._changed.notify_all()


class Pool:
    """Runs tasks in the order of their ranks, and of their arrival. A task must not raise."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._tasks: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._run, name=f"images-{number}-{name}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The threads end with what is under way and waits. They are not joined: a fetch may take seconds."""
        for _ in self._threads:
            self._tasks.put((_LAST, next(self._numbers), None))

    def run(self, rank: int, task: Callable[[], None]) -> None:
        self._tasks.put((rank, next(self._numbers), task))

    def _run(self) -> None:
        while (task := self._tasks.get()[2]) is not None:
            task()
