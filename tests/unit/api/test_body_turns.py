"""Large bodies are worked on one by one, and tenants take turns."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from api.services.body_turns import BEGUN_AT_ONCE, SMALL_BYTES, BodyTurns

LARGE = SMALL_BYTES + 1


class Work:
    """Calls that note who began, each after the one before was let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_once = 0
        self._running = 0
        self._lock = threading.Lock()
        self.may_end = threading.Event()

    def of(self, name: str) -> Callable[[], str]:
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


def test_tenants_take_turns_and_one_call_runs_at_a_time() -> None:
    work = Work()

    async def run() -> list[str]:
        turns = BodyTurns()
        calls = []
        for tenant, number in [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("b", 1)]:
            name = f"{tenant}{number}"
            calls.append(asyncio.ensure_future(turns.run(tenant, LARGE, work.of(name))))
            await asyncio.sleep(0)
        await until(lambda: bool(work.begun))
        work.may_end.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(run()) == ["a0", "a1", "a2", "b0", "c0", "b1"]
    assert work.begun == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert work.at_once == 1


def test_small_bodies_wait_for_no_turn() -> None:
    work = Work()

    async def run() -> None:
        turns = BodyTurns()
        large = asyncio.ensure_future(turns.run("a", LARGE, work.of("large")))
        await until(lambda: work.begun == ["large"])
        small = asyncio.ensure_future(turns.run("a", SMALL_BYTES, work.of("small")))
        await until(lambda: "small" in work.begun)
        work.may_end.set()
        await asyncio.gather(large, small)

    asyncio.run(run())


@pytest.mark.parametrize("cancelled", [1, 2])
def test_a_request_that_is_given_up_holds_up_no_other(cancelled: int) -> None:
    work = Work()

    async def run() -> None:
        turns = BodyTurns()
        calls = [asyncio.ensure_future(turns.run("a", LARGE, work.of(str(number)))) for number in range(4)]
        await until(lambda: bool(work.begun))
        calls[cancelled].cancel()
        work.may_end.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert await turns.run("b", LARGE, work.of("last")) == "last"

    asyncio.run(run())
    assert work.begun == [str(number) for number in range(4) if number != cancelled] + ["last"]


def test_so_many_requests_begin_at_a_time_and_the_next_in_their_tenants_turn() -> None:
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


def test_a_call_that_raises_leaves_its_turn() -> None:
    async def run() -> None:
        turns = BodyTurns()
        with pytest.raises(ZeroDivisionError):
            await turns.run("a", LARGE, lambda: 1 // 0)
        assert await turns.run("a", LARGE, lambda: 1) == 1

    asyncio.run(run())
