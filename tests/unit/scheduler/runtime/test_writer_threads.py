"""Threads that write parts have numbers: the last one leaves tenants whose parts are being written."""

import threading
from queue import SimpleQueue
from typing import cast

from nightshift.bulk.results.part_writer import PartWriter
from scheduler.duties.running_output import WriterThreads


class HeldWriter:
    """Writes one part, which lasts until it may end."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def write_next(self) -> bool:
        self.begun.set()
        self.may_end.wait()
        return False


def test_a_thread_that_has_ended_is_woken_again_under_its_number() -> None:
    made: SimpleQueue[tuple[int, HeldWriter]] = SimpleQueue()

    def writer(number: int) -> PartWriter:
        made.put((number, one := HeldWriter()))
        return cast(PartWriter, one)

    threads = WriterThreads(writer, 2)
    threads.wake()
    writers = dict(made.get() for _ in range(2))
    assert sorted(writers) == [0, 1]
    threads.wake()
    assert made.empty(), "both are under way"

    writers[0].may_end.set()
    again = None
    while again is None:  # until the thread has told its end
        threads.wake()
        again = None if made.empty() else made.get()
    assert again[0] == 0
    for one in (again[1], writers[1]):
        one.may_end.set()
    assert threads.wait_until_idle(60)
