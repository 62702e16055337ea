"""One thread for what grows with a body: reading, checking and fingerprinting large ones.

Such work holds Python's lock, so that several threads of it would only keep the event loop waiting for
longer: each of them takes the lock in between. Tenants take turns, a call each.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool

T = TypeVar("T")

SMALL_BYTES: Final = 64 * 1024  # bodies of so many bytes take a few milliseconds, on any thread


class BodyTurns:
    """For one event loop."""

    def __init__(self) -> None:
        self._thread = CapacityLimiter(1)
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by tenant
        self._is_taken = False

    async def run(self, tenant_id: str, size_bytes: int, call: Callable[[], T]) -> T:
        """Call it in a thread, for a body of this size: a large one in its tenant's turn."""
        if size_bytes <= SMALL_BYTES:
            return await run_in_threadpool(call)
        async with self._turn(tenant_id):
            return await to_thread.run_sync(call, limiter=self._thread)

    @asynccontextmanager
    async def _turn(self, tenant_id: str) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(tenant_id)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant_id: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """To the tenant that has waited longest for a turn; it then waits behind the others."""
        while self._waiting:
            tenant_id, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant_id] = turns
            if not turn.done():  # else its request was given up
                turn.set_result(None)
                return
        self._is_taken = False
