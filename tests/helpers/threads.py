"""A machine that has no thread left, as at the limit of processes that a container is given."""

import threading
from collections.abc import Callable

import pytest


def spare_threads(patch: pytest.MonkeyPatch, count: int, is_wanted: Callable[[str], bool]) -> threading.Event:
    """Lets only so many more threads of these names be started, with CPython's error for the others. Returns
    an event that is set when one was refused.
    """
    start = threading.Thread.start
    left = iter(range(count))
    refused = threading.Event()

    def start_one(thread: threading.Thread) -> None:
        if is_wanted(thread.name) and next(left, None) is None:
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", start_one)
    return refused
