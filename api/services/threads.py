"""Threads for calls that may hang, so that they delay no other request."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread

from nightshift.errors import TooManyRequests
from nightshift.tenants.turns import AsyncTurns

STORAGE_THREADS_MAX: Final = 32  # concurrent calls of the object store

T = TypeVar("T")


class StorageThreads:
    """Threads for calls of the object store, so that a hanging one delays nothing else; tenants take turns.

    Created in its event loop.
    """

    def __init__(self) -> None:
        self._turns = AsyncTurns(STORAGE_THREADS_MAX)
        self._limiter = CapacityLimiter(STORAGE_THREADS_MAX)

    def for_tenant(self, tenant_id: str) -> "TenantStorageThreads":
        return TenantStorageThreads(tenant_id, self._turns, self._limiter)


@dataclass(frozen=True)
class TenantStorageThreads:
    """Runs calls of the object store for one tenant."""

    tenant_id: str
    _turns: AsyncTurns
    _limiter: CapacityLimiter

    async def run(self, call: Callable[[], T]) -> T:
        async with self._turns.hold(self.tenant_id):
            return await to_thread.run_sync(call, limiter=self._limiter)

    async def iterate(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Streams from the object store, without a thread between pieces."""
        while (piece := await self.run(lambda: next(pieces, None))) is not None:
            yield piece

    async def begun(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The same with the first piece read: an error is raised before a status is sent."""
        first = await self.run(lambda: next(pieces, b""))
        return self._after(first, pieces)

    async def _after(self, first: bytes, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        yield first
        async for piece in self.iterate(pieces):
            yield piece


class BoundedCalls:
    """Threads for a few calls at a time, and fewer of one tenant. Created in its event loop."""

    def __init__(self, calls_max: int, *, per_tenant: int, refusal: str) -> None:
        self._calls_max, self._per_tenant, self._refusal = calls_max, per_tenant, refusal
        self._limiter = CapacityLimiter(calls_max)
        self._under_way: Counter[str] = Counter()  # by tenant

    async def run(self, tenant_id: str, call: Callable[[], T]) -> T:
        """Raises TooManyRequests."""
        if self._under_way[tenant_id] >= self._per_tenant or self._under_way.total() >= self._calls_max:
            raise TooManyRequests(self._refusal)
        self._under_way[tenant_id] += 1
        try:
            return await to_thread.run_sync(call, limiter=self._limiter)
        finally:
            self._under_way[tenant_id] -= 1
            self._under_way += Counter()  # drops the zeros
