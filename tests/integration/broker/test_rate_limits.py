"""Rates, counted in a real Valkey for all processes, and by each process without one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nightshift.broker.rate_limits import AWAY_S, RateLimits
from nightshift.process.settings import QueueSettings
from nightshift.tenants.rates import Rate
from tests.integration.servers import ValkeyServer

T = TypeVar("T")

REQUESTS = Rate("requests", 3, 1)
TOKENS = Rate("tokens", 100, 60)


def with_two(settings: QueueSettings, work: Callable[[RateLimits, RateLimits], Awaitable[T]]) -> T:
    """Does something with the limits of two processes."""

    async def run() -> T:
        first, second = RateLimits(settings), RateLimits(settings)
        try:
            return await work(first, second)
        finally:
            await first.close()
            await second.close()

    return asyncio.run(run())


def test_two_processes_share_a_rate(valkey: ValkeyServer) -> None:
    async def work(first: RateLimits, second: RateLimits) -> list[bool]:
        taken = [await limits.take("acme", [REQUESTS]) for limits in (first, second, first, second)]
        return [rate.is_taken for (rate,) in taken]

    assert with_two(valkey.settings, work) == [True, True, True, False]


def test_tenants_have_rates_of_their_own(valkey: ValkeyServer) -> None:
    async def work(first: RateLimits, second: RateLimits) -> int:
        for _ in range(4):
            await first.take("acme", [REQUESTS])
        (taken,) = await first.take("globex", [REQUESTS])
        return taken.remaining

    assert with_two(valkey.settings, work) == 2


def test_a_request_that_one_rate_refuses_takes_nothing_of_the_other(valkey: ValkeyServer) -> None:
    async def work(first: RateLimits, second: RateLimits) -> tuple[list[bool], list[int]]:
        await first.take("acme", [REQUESTS, TOKENS])
        refused = await second.take("acme", [REQUESTS, TOKENS])
        return [rate.is_taken for rate in refused], await first.used("acme", [REQUESTS, TOKENS])

    assert with_two(valkey.settings, work) == ([True, False], [1, 60])


def test_a_cost_above_the_limit_is_never_taken(valkey: ValkeyServer) -> None:
    async def work(first: RateLimits, second: RateLimits) -> tuple[bool, int]:
        (taken,) = await first.take("acme", [Rate("tokens", 100, 10**40)])
        return taken.is_taken, taken.remaining

    assert with_two(valkey.settings, work) == (False, 100)


def test_a_server_that_lost_the_scripts_gets_them_again(valkey: ValkeyServer) -> None:
    async def work(first: RateLimits, second: RateLimits) -> int:
        await first.take("acme", [REQUESTS])
        valkey.client.script_flush()
        (taken,) = await first.take("acme", [REQUESTS])
        return taken.remaining

    assert with_two(valkey.settings, work) == 1


def test_a_request_is_one_round_trip(valkey: ValkeyServer) -> None:
    async def work(first: RateLimits, second: RateLimits) -> int:
        await first.take("acme", [REQUESTS, TOKENS])  # connects, and loads the scripts
        before = valkey.client.info("stats")["total_reads_processed"]
        await first.take("acme", [REQUESTS, Rate("tokens", 100, 1)])
        after = valkey.client.info("stats")["total_reads_processed"]
        return int(after) - int(before) - 1  # the second question's

    assert with_two(valkey.settings, work) == 1


def test_without_redis_each_process_counts_and_asks_again_later(own_valkey: ValkeyServer) -> None:
    seconds = [0.0]

    async def work() -> tuple[list[bool], int]:
        limits = RateLimits(own_valkey.settings, lambda: seconds[0])
        try:
            own_valkey.kill()
            taken = [(await limits.take("acme", [REQUESTS]))[0].is_taken for _ in range(4)]
            own_valkey.start()
            seconds[0] += AWAY_S
            (last,) = await limits.take("acme", [REQUESTS])
        finally:
            await limits.close()
        return taken, last.remaining

    assert asyncio.run(work()) == ([True, True, True, False], 2)
