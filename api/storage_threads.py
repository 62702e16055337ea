"""Threads for what waits for the object store, apart from those that everything else runs on: a store that
hangs keeps nobody waiting who does not need it.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

STORAGE_THREADS_MAX: Final = 32  # calls of the object store at once; the next wait in the event loop


class StorageThreads:
    """Made inside the event loop that uses it."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(STORAGE_THREADS_MAX)

    async def run(self, act: Callable[[], T]) -> T:
        """What blocks on the object store, in a thread."""
        return await to_thread.run_sync(act, limiter=self._limiter)

    async def iterate(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """A stream out of the object store. Between two pieces it keeps no thread."""
        while (piece := await self.run(lambda: next(pieces, None))) is not None:
            yield piece
