"""Bounds the requests that begin in one turn of the event loop.

Requests that arrive together would all be read, authenticated and checked before the loop looks at anything
else: half a second for some hundreds, in which no health is answered and no token sent. Those that only read
(health, metrics, the page) begin at once.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

BEGUN_PER_TURN: Final = 16  # each takes about a millisecond until it first waits


class BeginTurns:
    """ASGI middleware. For one event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._num_begun = 0  # in this turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._begin()
        await self._app(scope, receive, send)

    async def _begin(self) -> None:
        """Waits for a turn that has room; the first to wait is the first to begin."""
        while self._num_begun >= BEGUN_PER_TURN:
            await asyncio.sleep(0)
        if not self._num_begun:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._num_begun += 1

    def _end_turn(self) -> None:
        self._num_begun = 0
