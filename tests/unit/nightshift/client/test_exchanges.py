"""Exchanges as the plain and the asynchronous client run them."""

import asyncio

import httpx
import pytest

from nightshift.client.exchanges import Call, Exchange, Pause, run, run_async

SERVER = httpx.MockTransport(lambda request: httpx.Response(200, text=request.url.path))


def waiting(said: list[str]) -> Exchange[str]:
    """Calls, then waits."""
    try:
        answer: httpx.Response = yield Call(method="GET", path="/a")
        said.append(answer.text)
        yield Pause(60)
    finally:
        said.append("closed")
    return "ended"


def test_an_exchange_is_told_answers_and_returns_its_result():
    said: list[str] = []
    with httpx.Client(transport=SERVER, base_url="http://server") as http:
        assert run(waiting(said), http, lambda _: None) == "ended"
    assert said == ["/a", "closed"]


def test_an_exchange_that_is_interrupted_as_it_waits_is_closed_at_once():
    said: list[str] = []

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with httpx.Client(transport=SERVER, base_url="http://server") as http, pytest.raises(KeyboardInterrupt):
        run(waiting(said), http, interrupted)
    assert said == ["/a", "closed"]


def test_an_exchange_whose_task_is_cancelled_is_closed():
    said: list[str] = []

    async def cancelled() -> None:
        is_waiting, never = asyncio.Event(), asyncio.Event()

        async def sleep(_: float) -> None:
            is_waiting.set()
            await never.wait()

        async with httpx.AsyncClient(transport=SERVER, base_url="http://server") as http:
            task = asyncio.create_task(run_async(waiting(said), http, sleep))
            await is_waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert said == ["/a", "closed"]
