"""Bounds the requests that begin in one turn of the event loop, and the reads that are answered at once.

Requests that arrive together would all be read, authenticated and checked before the loop looks at anything
else: half a second for some hundreds, in which no health is answered and no token sent. Reads would fill the
threads that all requests share. Callers take turns at them, until an answer begins: a stream or a download
that is open holds no place, and neither does a read that waits for a store. `/healthz` waits for nothing.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightshift.tenants.turns import AsyncTurns

BEGUN_PER_TURN: Final = 16  # each takes about a millisecond until it first waits
READS_AT_ONCE: Final = 16  # of the 40 threads that Starlette has: others are left for what is submitted
READS_PER_CALLER: Final = 8
READ_HOLDS_S: Final = (
    1.0  # a read that takes longer computes nothing: it waits, such as for a store that hangs
)

TenantOf = Callable[[str | None], str | None]
"""The tenant that an Authorization header names; None if that is not known without a look-up."""


class BeginTurns:
    """ASGI middleware. For one event loop."""

    def __init__(self, app: ASGIApp, tenant_of: TenantOf, read_holds_s: float = READ_HOLDS_S) -> None:
        self._app = app
        self._tenant_of = tenant_of
        self._num_begun = 0  # in this turn
        self._read_holds_s = read_holds_s
        self._reads = AsyncTurns(READS_AT_ONCE, per_tenant=READS_PER_CALLER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] != "/healthz":
            await self._read(scope, receive, send)
            return
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._begin()
        await self._app(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as place:
            await place.enter_async_context(self._reads.hold(self._caller(scope)))

            async def leave_and_send(message: Message) -> None:
                await place.aclose()  # nothing, from the second message on
                await send(message)

            leaving = asyncio.ensure_future(self._leave_later(place))
            try:
                await self._app(scope, receive, leave_and_send)
            finally:
                leaving.cancel()

    async def _leave_later(self, place: AsyncExitStack) -> None:
        await asyncio.sleep(self._read_holds_s)
        await place.aclose()

    def _caller(self, scope: Scope) -> str:
        """A key that is not known counts as its client's address: anyone can make up any number of them."""
        tenant = self._tenant_of(Headers(scope=scope).get("authorization"))
        return f"tenant {tenant}" if tenant else f"address {(scope.get('client') or ('',))[0]}"

    async def _begin(self) -> None:
        """Waits for a turn that has room; the first to wait is the first to begin."""
        while self._num_begun >= BEGUN_PER_TURN:
            await asyncio.sleep(0)
        if not self._num_begun:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._num_begun += 1

    def _end_turn(self) -> None:
        self._num_begun = 0
