"""A connection that was kept, and that the upstream had closed meanwhile, costs no request."""

import asyncio
from typing import Any, cast

import aiohttp
import pytest

from nightshift.process.upstreams import Upstream
from tests.helpers.upstreams import SimulatedUpstream
from workers.upstreams.connection import Connection

BODY = {"model": "simulated", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
ROUTE = "/v1/chat/completions"


class ClosedOnce:
    """A session whose first kept connection has been closed."""

    def __init__(self, session: aiohttp.ClientSession, error: Exception) -> None:
        self._session, self._error = session, [error]

    async def request(self, *arguments: Any, **options: Any) -> aiohttp.ClientResponse:
        if self._error:
            raise self._error.pop()
        return await self._session.request(*arguments, **options)


@pytest.mark.parametrize(
    "error", [aiohttp.ServerDisconnectedError(), aiohttp.ClientOSError(None, "Can not write request body")]
)
def test_a_request_is_sent_again_that_did_not_reach_the_upstream(
    upstream: SimulatedUpstream, error: Exception
) -> None:
    async def ask() -> bytes:
        connection = Connection(Upstream(url=upstream.url), None, 1 << 20)
        closed = ClosedOnce(connection._opened(), error)
        session, connection._session = connection._session, cast(aiohttp.ClientSession, closed)
        try:
            return (await connection.post(ROUTE, BODY)).data
        finally:
            connection._session = session
            await connection.close()

    assert b'"choices"' in asyncio.run(ask())
