"""Turns for what requests cost before they are accepted: to read, check, fingerprint and record them.

That work holds Python's lock or keeps the event loop itself busy, so that doing much of it at once does it no
sooner and lets everything else wait. So many requests are worked on at a time; tenants take turns, a request
each.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")

SMALL_BYTES: Final = 64 * 1024  # bodies of so many bytes take a few milliseconds
LARGE_AT_ONCE: Final = 1  # each holds Python's lock for up to some 20 ms at a stretch
BEGUN_AT_ONCE: Final = 16  # share a transaction; more only make each other's callbacks wait


class Turns:
    """So many at a time, tenants in turn. For one event loop."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by tenant

    @asynccontextmanager
    async def turn(self, tenant_id: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(tenant_id)
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
        self._free += 1


class BodyTurns:
    """Work on bodies, in threads."""

    def __init__(self) -> None:
        self._large = Turns(LARGE_AT_ONCE)
        self.beginning = Turns(BEGUN_AT_ONCE)  # from the check of a request to its record

    async def run(self, tenant_id: str, size_bytes: int, call: Callable[[], T]) -> T:
        """Call it in a thread, for a body of this size: a large one in its tenant's turn."""
        if size_bytes <= SMALL_BYTES:
            return await run_in_threadpool(call)
        async with self._large.turn(tenant_id):
            return await run_in_threadpool(call)
