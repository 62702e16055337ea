"""The client for programs with an event loop: it waits on the loop, and works in threads."""

import asyncio
from threading import Event
from typing import Literal, Self, Unpack, overload

import httpx

from nightshift.client.connection import ANSWER_TIMEOUT_S
from nightshift.client.http_client import Client
from nightshift.client.mapping import runs
from nightshift.client.mapping.calls import MapOptions
from nightshift.client.mapping.handles import AsyncMapHandle
from nightshift.client.mapping.results import MapResult


class AsyncClient:
    """`map` and `attach` for programs with an event loop."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """The arguments of `Client`. Raises ConfigurationError."""
        self._closed = Event()
        self._client = Client(
            base_url,
            api_key,
            transport=transport,
            sleep=self._closed.wait,  # so that no thread outlives the client
            answer_timeout_s=answer_timeout_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed.set()
        self._client.close()

    @overload
    async def map(
        self, data: object, prompt: str, *, wait: Literal[True] = True, **options: Unpack[MapOptions]
    ) -> MapResult: ...

    @overload
    async def map(
        self, data: object, prompt: str, *, wait: Literal[False], **options: Unpack[MapOptions]
    ) -> AsyncMapHandle: ...

    async def map(
        self, data: object, prompt: str, *, wait: bool = True, **options: Unpack[MapOptions]
    ) -> MapResult | AsyncMapHandle:
        """Asks a model `prompt` of each row of `data`. Raises as `Client.map`."""
        handle = AsyncMapHandle(await asyncio.to_thread(runs.begun, self._client, data, prompt, options))
        return await handle.result(progress=options.get("progress", True)) if wait else handle

    async def attach(self, name: str) -> AsyncMapHandle:
        """The handle of the newest call of this name. Raises InvalidRequest where there is none."""
        return AsyncMapHandle(await asyncio.to_thread(runs.attached, self._client, name))
