"""Turns for what requests cost before they are accepted: to read, check, fingerprint and record them.

That work holds Python's lock or keeps the event loop itself busy, so that doing much of it at once does it no
sooner and lets everything else wait. So many requests are worked on at a time; tenants take turns, a request
each.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool

from nightshift.tenants.turns import AsyncTurns

T = TypeVar("T")

SMALL_BYTES: Final = 64 * 1024  # bodies of so many bytes take a few milliseconds
LARGE_AT_ONCE: Final = 1  # each holds Python's lock for up to some 20 ms at a stretch
BEGUN_AT_ONCE: Final = 16  # share a transaction; more only make each other's callbacks wait


class BodyTurns:
    """Work on bodies, in threads."""

    def __init__(self) -> None:
        self._large = AsyncTurns(LARGE_AT_ONCE)
        # From the check of a request to its record. A tenant alone has all: they are short.
        self.beginning = AsyncTurns(BEGUN_AT_ONCE, per_tenant=BEGUN_AT_ONCE)

    async def run(self, tenant_id: str, size_bytes: int, call: Callable[[], T]) -> T:
        """Call it in a thread, for a body of this size: a large one in its tenant's turn."""
        if size_bytes <= SMALL_BYTES:
            return await run_in_threadpool(call)
        async with self._large.hold(tenant_id):
            return await run_in_threadpool(call)
