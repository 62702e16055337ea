"""Requests begin a few at a time, large bodies are worked on one by one, and tenants take turns."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.middleware.turns import (
    BEGUN_AT_ONCE,
    BEGUN_PER_TURN,
    READ_HOLDS_S,
    READS_PER_CALLER,
    SMALL_BYTES,
    BeginTurns,
    BodyTurns,
)

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
        turns = BeginTurns(app, lambda given: None)

        async def ask(method: str, path: str) -> None:
            await turns({"type": "http", "method": method, "path": path, "headers": []}, _receive, _send)

        flood = [asyncio.ensure_future(ask("POST", f"flood {number}")) for number in range(ARRIVED)]
        for _ in range(after_turns):
            await asyncio.sleep(0)
        await asyncio.gather(*flood, *(ask(method, method) for method in others))

    asyncio.run(run())
    return order


def test_so_many_begin_in_a_turn_in_the_order_of_their_arrival_and_a_health_check_before_those_that_wait():
    flood = [f"flood {number}" for number in range(ARRIVED)]

    assert begun(["POST"], 1) == [*flood, "POST"]
    order = begun(["GET"], 1)
    assert BEGUN_PER_TURN <= order.index("GET") <= 3 * BEGUN_PER_TURN, "and not after all of them"


def read(path: str, address: str = "10.0.0.1", key: str | None = None) -> Scope:
    headers = [] if key is None else [(b"authorization", key.encode())]
    return {"type": "http", "method": "GET", "path": path, "headers": headers, "client": (address, 1)}


class Reads:
    """Answers that begin when they are told to, and end later still."""

    def __init__(self, read_holds_s: float = READ_HOLDS_S) -> None:
        self.begun: Counter[str] = Counter()
        self.may_answer = asyncio.Event()
        self.may_end = asyncio.Event()
        self.turns = BeginTurns(
            self._answer, lambda given: "acme" if given == "a known key" else None, read_holds_s
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun[scope["path"]] += 1
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.may_end.wait()

    async def ask(self, *scopes: Scope) -> None:
        self._tasks += [asyncio.ensure_future(self.turns(scope, _receive, _send)) for scope in scopes]
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.may_answer.set()
        self.may_end.set()
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize(
    ("flood", "other"),
    [
        pytest.param({}, {"address": "10.0.0.2"}, id="without keys"),
        pytest.param({"key": "a known key"}, {}, id="of a tenant"),
        pytest.param({"key": "made up"}, {"key": "a known key"}, id="with keys that are made up"),
    ],
)
def test_a_flood_of_one_callers_reads_holds_up_no_other_caller_and_no_health_check(flood, other):
    async def run() -> None:
        reads = Reads()
        keys = [
            flood | ({"key": f"{flood['key']} {n}"} if flood.get("key") == "made up" else {})
            for n in range(300)
        ]
        await reads.ask(*(read("/flood", **fields) for fields in keys))
        assert reads.begun["/flood"] == READS_PER_CALLER
        await reads.ask(read("/other", **other), read("/healthz", **flood))
        assert (reads.begun["/other"], reads.begun["/healthz"]) == (1, 1)
        await reads.end()
        assert reads.begun["/flood"] == 300, "and none is lost"

    asyncio.run(run())


def test_a_read_that_waits_for_a_store_holds_its_place_for_a_moment_only():
    async def run() -> None:
        reads = Reads(read_holds_s=0)
        await reads.ask(*(read("/hanging") for _ in range(3 * READS_PER_CALLER)))
        while reads.begun["/hanging"] < 3 * READS_PER_CALLER:
            await asyncio.sleep(0)
        await reads.end()

    asyncio.run(run())


def test_an_answer_that_has_begun_holds_no_place():
    """A stream, or a download that its client reads slowly."""

    async def run() -> None:
        reads = Reads()
        reads.may_answer.set()
        await reads.ask(*(read("/stream") for _ in range(3 * READS_PER_CALLER)))
        await reads.settle()
        assert reads.begun["/stream"] == 3 * READS_PER_CALLER
        await reads.end()

    asyncio.run(run())


LARGE = SMALL_BYTES + 1


class Work:
    """Calls that note who began, each after the one before was let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_once = 0
        self._running = 0
        self._lock = threading.Lock()
        self.may_end = threading.Event()

    def noting(self, name: str) -> Callable[[], str]:
        def call() -> str:
            with self._lock:
                self._running += 1
                self.at_once = max(self.at_once, self._running)
                self.begun.append(name)
            self.may_end.wait()
            with self._lock:
                self._running -= 1
            return name

        return call


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_tenants_take_turns_and_one_call_runs_at_a_time():
    work = Work()

    async def run() -> list[str]:
        turns = BodyTurns()
        calls = []
        for tenant, number in [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("b", 1)]:
            name = f"{tenant}{number}"
            calls.append(asyncio.ensure_future(turns.run(tenant, LARGE, work.noting(name))))
            await asyncio.sleep(0)
        await until(lambda: bool(work.begun))
        work.may_end.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(run()) == ["a0", "a1", "a2", "b0", "c0", "b1"]
    assert work.begun == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert work.at_once == 1


def test_small_bodies_wait_for_no_turn():
    work = Work()

    async def run() -> None:
        turns = BodyTurns()
        large = asyncio.ensure_future(turns.run("a", LARGE, work.noting("large")))
        await until(lambda: work.begun == ["large"])
        small = asyncio.ensure_future(turns.run("a", SMALL_BYTES, work.noting("small")))
        await until(lambda: "small" in work.begun)
        work.may_end.set()
        await asyncio.gather(large, small)

    asyncio.run(run())


@pytest.mark.parametrize("cancelled", [1, 2])
def test_a_request_that_is_given_up_holds_up_no_other(cancelled):
    work = Work()

    async def run() -> None:
        turns = BodyTurns()
        calls = [
            asyncio.ensure_future(turns.run("a", LARGE, work.noting(str(number)))) for number in range(4)
        ]
        await until(lambda: bool(work.begun))
        calls[cancelled].cancel()
        work.may_end.set()
        await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(ZeroDivisionError):
            await turns.run("a", LARGE, lambda: 1 // 0)
        assert await turns.run("b", LARGE, work.noting("last")) == "last"

    asyncio.run(run())
    assert work.begun == [str(number) for number in range(4) if number != cancelled] + ["last"]


def test_so_many_requests_begin_at_a_time_and_the_next_in_their_tenants_turn():
    begun: list[str] = []

    async def run() -> None:
        turns = BodyTurns().beginning
        ends: dict[str, asyncio.Event] = {}

        async def begin(tenant: str, number: int) -> None:
            name = f"{tenant}{number}"
            ends[name] = asyncio.Event()
            async with turns.hold(tenant):
                begun.append(name)
                await ends[name].wait()

        tasks = [asyncio.ensure_future(begin("a", number)) for number in range(BEGUN_AT_ONCE + 2)]
        tasks.append(asyncio.ensure_future(begin("b", 0)))
        await until(lambda: len(begun) == BEGUN_AT_ONCE and len(ends) == len(tasks))
        ends["a0"].set()
        await until(lambda: len(begun) == BEGUN_AT_ONCE + 1)
        ends["a1"].set()
        await until(lambda: len(begun) == BEGUN_AT_ONCE + 2)
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert begun[BEGUN_AT_ONCE:] == ["b0", f"a{BEGUN_AT_ONCE}", f"a{BEGUN_AT_ONCE + 1}"]
