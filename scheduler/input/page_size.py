"""How many shards one transaction records: fewer while that takes long, since other writers wait for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LEAST: Final = 16  # what else a transaction does costs as much as these
LONG_S: Final = 0.05
SHORT_S: Final = LONG_S / 4  # twice as many take less than half of what is long


class PageSize:
    """Of all jobs together: they write to one database. Threads may change it side by side; each is right."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = min(LEAST, most)
        self._most = most
        self._clock = clock
        self.shards = most

    @contextmanager
    def timed(self, shards: int) -> Iterator[None]:
        """The block records so many shards. The next page is shorter if it takes long, and longer if it does
        not.
        """
        began_s = self._clock()
        yield
        took_s = self._clock() - began_s
        if took_s > LONG_S and shards > LEAST:
            self.shards = max(self._least, self.shards // 2)
        elif took_s < SHORT_S and shards >= self.shards:
            self.shards = min(self._most, 2 * self.shards)
