"""What the API sees of Redis and of its disk, at each scrape."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.errors import QueueUnavailable
from nightshift.process.metrics import service


class Surroundings(Collector):
    """`ping` raises QueueUnavailable, after a time of its own at most."""

    def __init__(self, ping: Callable[[], None], data_dir: Path) -> None:
        self._ping = ping
        self._data_dir = data_dir

    def describe(self) -> Iterator[Metric]:
        """Empty, so that registering asks no one."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        up = service.REDIS_UP.collected()
        up.add_metric((), float(self._answers()))
        yield up
        yield from self._disk()

    def _answers(self) -> bool:
        try:
            self._ping()
        except QueueUnavailable:
            return False
        return True

    def _disk(self) -> Iterator[Metric]:
        """Without samples where there is no such directory."""
        size, free = service.DISK_BYTES.collected(), service.DISK_FREE.collected()
        try:
            found = shutil.disk_usage(self._data_dir)
        except OSError:
            pass
        else:
            size.add_metric((), found.total)
            free.add_metric((), found.free)
        yield from (size, free)
