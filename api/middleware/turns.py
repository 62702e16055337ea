"""Bounds what requests take of the event loop, the threads and the memory at a time; tenants take turns.

BeginTurns   requests that begin in one turn of the event loop, and reads that are answered at once
BodyTurns    checks and records of what is submitted
BodyMemory   bytes of large request bodies
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightshift.errors import TooManyRequests
from nightshift.tenants.quotas import may_take
from nightshift.tenants.turns import AsyncTurns

BEGUN_PER_TURN: Final = 16  # each takes about a millisecond until it first waits
READS_AT_ONCE: Final = 16  # of the 40 threads that Starlette has: others are left for what is submitted
READS_PER_CALLER: Final = 8
READ_HOLDS_S: Final = 1.0  # a longer read computes nothing: it waits, such as for a store that hangs

SMALL_BYTES: Final = 64 * 1024  # such a body takes a few milliseconds, and is not counted
RETRY_AFTER_S: Final = 5
LARGE_AT_ONCE: Final = 1  # each holds Python's lock for up to some 20 ms at a stretch
BEGUN_AT_ONCE: Final = 16  # share a transaction; more only make each other's callbacks wait

T = TypeVar("T")

TenantOf = Callable[[str | None], str | None]
"""The tenant that an Authorization header names; None if that is not known without a look-up."""


class BeginTurns:
    """ASGI middleware, for one event loop.

    Requests that arrive together would all be read, authenticated and checked before the loop looks at
    anything else: half a second for some hundreds, in which no health is answered and no token sent. Reads
    would fill the threads that all requests share. Callers take turns at them until an answer begins: an open
    stream or download holds no place, and neither does a read that waits for a store. `/healthz` never waits.
    """

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


class BodyMemory:
    """Bytes of large request bodies in progress, by tenant, for one event loop.

    A body is in memory before its request is admitted, until the answer. A tenant's slow uploads leave memory
    for others (`nightshift/tenants/turns.py`).
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._of_tenant: Counter[str] = Counter()

    @contextmanager
    def reserved(self, tenant_id: str, size_bytes: int) -> Iterator[None]:
        """Counts a body during the block. Raises TooManyRequests over the limit."""
        counted = size_bytes if size_bytes > SMALL_BYTES else 0
        free = self._bytes_max - self._of_tenant.total()
        if counted and not may_take(counted, held=self._of_tenant[tenant_id], free=free):
            raise TooManyRequests(
                "Too many large requests are under way. Wait for some to be answered, or send a batch.",
                retry_after_s=RETRY_AFTER_S,
            )
        self._of_tenant[tenant_id] += counted
        try:
            yield
        finally:
            self._of_tenant[tenant_id] -= counted
            self._of_tenant += Counter()  # drops the zeros


class BodyTurns:
    """Turns for what requests cost before they are accepted: to read, check, fingerprint and record them.

    That work holds Python's lock or keeps the event loop busy: much of it at once is done no sooner, and lets
    everything else wait.
    """

    def __init__(self) -> None:
        self._large = AsyncTurns(LARGE_AT_ONCE)
        # From the check of a request to its record. A tenant alone has all: they are short.
        self.beginning = AsyncTurns(BEGUN_AT_ONCE, per_tenant=BEGUN_AT_ONCE)

    async def run(self, tenant_id: str, size_bytes: int, call: Callable[[], T]) -> T:
        """Runs work on a body of this size in a thread: on a large one in its tenant's turn."""
        if size_bytes <= SMALL_BYTES:
            return await run_in_threadpool(call)
        async with self._large.hold(tenant_id):
            return await run_in_threadpool(call)
