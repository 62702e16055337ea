"""The client for programs with an event loop: calls over tables, in the steps of the plain client."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack, overload

import httpx

from nightshift.client.connection import connection
from nightshift.client.exchanges import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, Exchange, run_async
from nightshift.client.mapping import programs
from nightshift.client.mapping.calls import MapOptions
from nightshift.client.mapping.handles import AsyncMapHandle
from nightshift.client.mapping.results import MapResult

T = TypeVar("T")


class AsyncClient:
    """Reads and encodes tables in threads, so that the loop goes on."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """The arguments of `Client`. Raises ConfigurationError."""
        server = connection(base_url, api_key)
        self._http = httpx.AsyncClient(
            base_url=server.base_url,
            headers=server.headers,
            timeout=httpx.Timeout(answer_timeout_s, connect=min(CONNECT_TIMEOUT_S, answer_timeout_s)),
            transport=transport,
        )
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    @overload
    async def map(
        self,
        data: object,
        prompt: str,
        *,
        wait: Literal[True] = True,
        progress: bool = True,
        **options: Unpack[MapOptions],
    ) -> MapResult: ...

    @overload
    async def map(
        self,
        data: object,
        prompt: str,
        *,
        wait: Literal[False],
        progress: bool = True,
        **options: Unpack[MapOptions],
    ) -> AsyncMapHandle: ...

    async def map(
        self,
        data: object,
        prompt: str,
        *,
        wait: bool = True,
        progress: bool = True,
        **options: Unpack[MapOptions],
    ) -> MapResult | AsyncMapHandle:
        """Asks a model `prompt` of each row of `data`. Raises as `Client.map`."""
        started = await self._run(programs.started(data, prompt, **options))
        handle = AsyncMapHandle(self._run, started)
        return await handle.result(progress=progress) if wait else handle

    async def attach(self, name: str) -> AsyncMapHandle:
        """The handle of the newest call of this name. Raises InvalidRequest where there is none."""
        return AsyncMapHandle(self._run, await self._run(programs.attached(name)))

    async def _run(self, exchange: Exchange[T]) -> T:
        return await run_async(exchange, self._http, self._sleep)
