"""Which rows of a shard may be given to the engine now, where a row may be what killed the workers before.

A `Watch` is asked by the runner of one shard, on its thread. `Isolation` is the worker's: while it is held,
one suspected row has the worker to itself.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

from nightshift.jobs import Answer, BulkClaim
from nightshift.store import Store


class Watch(Protocol):
    """What a shard's runner asks before, and tells after, each row."""

    def refuses(self, row: int) -> Answer | None:
        """The error answer of a row that is run no more; None: it may be run."""

    def may_admit(self, row: int) -> bool:
        """False: not now. Some row has the worker to itself, or this one waits until it can have that."""

    def admitted(self, rows: Sequence[int]) -> None:
        """These are about to be given to the engine.

        Raises LeaseLost and DatabaseUnavailable; then they may not be.
        """

    def finished(self, row: int) -> None:
        """It has its result, or has left the engine without one. An unknown row is ignored."""

    def close(self) -> None:
        """The lease has ended, however it did: what this shard held of the worker is given up."""


class Isolation:
    """The right of one shard to have the worker to itself, and whether anybody has it. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object | None = None

    def take(self, holder: object) -> bool:
        """Take the right, or keep it. False: somebody else has it."""
        with self._lock:
            if self._holder is None:
                self._holder = holder
            return self._holder is holder

    def give_up(self, holder: object) -> None:
        """Nothing happens to somebody else's right."""
        with self._lock:
            if self._holder is holder:
                self._holder = None

    @property
    def is_held(self) -> bool:
        return self._holder is not None

    def is_held_by_another(self, than: object) -> bool:
        holder = self._holder
        return holder is not None and holder is not than


class Unwatched:
    """A shard whose rows are above suspicion. It stands back while a row of another has the worker."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation

    def refuses(self, row: int) -> Answer | None:
        return None

    def may_admit(self, row: int) -> bool:
        return not self._isolation.is_held_by_another(self)

    def admitted(self, rows: Sequence[int]) -> None:
        """Nothing is written down."""

    def finished(self, row: int) -> None:
        """Nothing was written down."""

    def close(self) -> None:
        """Nothing was taken."""


def watch(claim: BulkClaim, store: Store, isolation: Isolation) -> Watch:
    """How the rows of this lease are looked after."""
    return Unwatched(isolation)
