"""Requests that arrive together begin a few at a time, and others come between."""

import asyncio

from starlette.types import Message, Receive, Scope, Send

from api.middleware.begin_turns import BEGUN_PER_TURN, BeginTurns

ARRIVED = 3 * BEGUN_PER_TURN + 1


async def _receive() -> Message:
    return {"type": "http.disconnect"}


async def _send(message: Message) -> None:
    """The application answers nothing."""


def begun(others: list[str], after_turns: int) -> list[str]:
    """The order in which requests begin of which many POST arrive together, and others some turns later."""
    order: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        order.append(scope["path"])

    async def run() -> None:
        turns = BeginTurns(app)

        async def ask(method: str, path: str) -> None:
            await turns({"type": "http", "method": method, "path": path}, _receive, _send)

        flood = [asyncio.ensure_future(ask("POST", f"flood {number}")) for number in range(ARRIVED)]
        for _ in range(after_turns):
            await asyncio.sleep(0)
        await asyncio.gather(*flood, *(ask(method, method) for method in others))

    asyncio.run(run())
    return order


def test_so_many_begin_in_a_turn_in_the_order_of_their_arrival() -> None:
    assert [name for name in begun([], 0) if name.startswith("flood")] == [
        f"flood {number}" for number in range(ARRIVED)
    ]


def test_a_health_check_begins_before_those_that_wait() -> None:
    order = begun(["GET"], 1)
    assert BEGUN_PER_TURN <= order.index("GET") <= 3 * BEGUN_PER_TURN, "and not after all of them"


def test_a_later_request_begins_behind_those_that_wait() -> None:
    assert begun(["POST"], 1)[-1] == "POST"
