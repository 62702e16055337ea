"""Limits failed sign-ins: of an address, and of all that have failed together.

An address without a failure of late is never refused: others cannot lock it out.
"""

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from nightshift.errors import TooManyRequests

OF_ADDRESS: Final = RateLimitItemPerMinute(10)
OF_ALL: Final = RateLimitItemPerMinute(300)
FIRST: Final = RateLimitItemPerMinute(1)
RETRY_AFTER_S: Final = 60
ONE_HOST_BITS: Final = 64  # of IPv6: a host has all addresses of such a network


class Attempts:
    """In this process; for one event loop."""

    def __init__(self) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def check(self, address: str) -> None:
        """Raises TooManyRequests."""
        host, test = _host(address), self._limiter.test
        may_try = await test(OF_ADDRESS, host) and (await test(OF_ALL) or await test(FIRST, host))
        if not may_try:
            raise TooManyRequests("Too many keys were refused. Wait a minute.", retry_after_s=RETRY_AFTER_S)

    async def failed(self, address: str) -> None:
        host = _host(address)
        for limit in (OF_ADDRESS, FIRST):
            await self._limiter.hit(limit, host)
        await self._limiter.hit(OF_ALL)


def _host(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:  # of a unix socket there is none
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed.packed, ONE_HOST_BITS), strict=False))
