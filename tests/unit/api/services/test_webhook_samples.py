"""Tests of webhook endpoints that hang take a tenant's own places, and no one else's."""

import asyncio
import threading
from collections.abc import Mapping

import pytest

from api.services.webhook_samples import SAMPLES_PER_TENANT_MAX, WebhookSamples
from nightshift.errors import TooManyRequests
from nightshift.outbound.safe_http import EgressResponse

HANGING, HEALTHY = "https://hanging.example/", "https://healthy.example/"


class Receivers:
    """The hanging one answers when it is let go."""

    def __init__(self) -> None:
        self.called = threading.Semaphore(0)
        self.released = threading.Event()

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse:
        self.called.release()
        if url == HANGING:
            assert self.released.wait(30)
        return EgressResponse(204, {}, b"")


def test_a_tenant_may_wait_for_so_many_receivers_and_others_for_theirs():
    receivers = Receivers()

    async def scenario() -> None:
        tests = WebhookSamples(receivers)

        async def send(tenant: str, url: str) -> int:
            return await tests.send(tenant, url, b"", {})

        waiting = [asyncio.create_task(send("slow", HANGING)) for _ in range(SAMPLES_PER_TENANT_MAX)]
        for _ in waiting:
            await asyncio.to_thread(receivers.called.acquire)
        with pytest.raises(TooManyRequests):
            await send("slow", HEALTHY)
        assert await send("quick", HEALTHY) == 204

        receivers.released.set()
        assert await asyncio.gather(*waiting) == [204] * SAMPLES_PER_TENANT_MAX
        assert await send("slow", HEALTHY) == 204

    asyncio.run(scenario())
