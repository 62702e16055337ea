"""Pages of shards that planning makes of an input, each recorded in one transaction, or its refusal."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from nightshift.jobs import InputError, NewShard
from nightshift.jobs.planning import PlanCursor


@dataclass(frozen=True, kw_only=True)
class ShardPage:
    """Shards that are recorded together, the next after those of the job's cursor."""

    model: str | None  # None as long as there are no shards
    shards: Sequence[NewShard]
    rows_total: int | None = None  # exact, of a validated file: with its last page
    rows_estimated: int | None = (
        None  # of this page, from a sample; exact in a validated file's, if it has several
    )
    tokens_estimated: int = 0  # of the prompts, by the input's bytes
    next: PlanCursor | None = None  # where the next page begins; None: this is the last


class Refused(Exception):
    """The input cannot be run as it is, and trying again would not help."""

    def __init__(self, *errors: InputError) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors


LEAST: Final = 16  # what else a transaction does costs as much as these
LONG_S: Final = 0.05
SHORT_S: Final = LONG_S / 4  # twice as many take less than half of what is long


class PageSize:
    """Shards in a page, for all jobs together. Threads may change it side by side."""

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
