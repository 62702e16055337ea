"""Limits failed sign-ins: of an address, and of all together."""

from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from nightshift.errors import TooManyRequests

OF_ADDRESS: Final = RateLimitItemPerMinute(10)
OF_ALL: Final = RateLimitItemPerMinute(300)  # bounds the addresses that are remembered, too
RETRY_AFTER_S: Final = 60


class Attempts:
    """In this process; for one event loop."""

    def __init__(self) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def check(self, address: str) -> None:
        """Raises TooManyRequests."""
        if not (await self._limiter.test(OF_ADDRESS, address) and await self._limiter.test(OF_ALL)):
            raise TooManyRequests("Too many keys were refused. Wait a minute.", retry_after_s=RETRY_AFTER_S)

    async def failed(self, address: str) -> None:
        await self._limiter.hit(OF_ADDRESS, address)
        await self._limiter.hit(OF_ALL)
