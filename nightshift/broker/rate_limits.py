"""Counts what tenants take of their rates, for all API processes together, with the `limits` library.

    LIMITS:ns/{tenant}/{requests or tokens}/…     counts of this minute and the last one

Without Redis every process counts by itself: a tenant may then take its rate from each of them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.exceptions import NoScriptError

from nightshift.broker.token_streams import connection_url
from nightshift.process.settings import QueueSettings
from nightshift.tenants.rates import WINDOW_S, Rate, Taken, Window

log = logging.getLogger(__name__)

AWAY_S: Final = 5.0  # after a failure, until Redis is asked again
CONNECTIONS_MAX: Final = 256  # per API process
NAMESPACE: Final = "ns"


class RateLimits:
    """Rate limits, kept in Redis. An instance belongs to one event loop."""

    def __init__(self, settings: QueueSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = _Pipelined(settings)
        self._own = _InProcess()
        self._clock = clock
        self._away_until_s = 0.0

    async def take(self, tenant_id: str, rates: Sequence[Rate]) -> list[Taken]:
        """Takes a request's part of each rate: of all, or of none. One round trip; two if some refuse it.

        A rate that can never allow the cost refuses it.
        """
        taken = await self._ask(tenant_id, rates)
        if all(one.is_taken for one in taken):
            return taken
        back = [_negative(one.rate) for one in taken if one.is_taken and one.rate.cost]
        if back:
            await self._ask(tenant_id, back)
        return taken

    async def used(self, tenant_id: str, rates: Sequence[Rate]) -> list[int]:
        """Returns how much of each rate is taken at present."""
        taken = await self._ask(tenant_id, [Rate(rate.name, rate.limit, 0) for rate in rates])
        return [one.window.used for one in taken]

    async def close(self) -> None:
        await self._shared.close()

    async def _ask(self, tenant_id: str, rates: Sequence[Rate]) -> list[Taken]:
        if self._clock() >= self._away_until_s:
            try:
                return await self._shared.take(tenant_id, rates)
            except redis.RedisError as error:
                self._away_until_s = self._clock() + AWAY_S
                log.warning(
                    "rates are counted by this process alone",
                    extra={"action": "rates_not_shared", "reason": str(error)},
                )
        return await self._own.take(tenant_id, rates)


class _Pipelined:
    """The library's storage and scripts; all rates of a request are asked for at once."""

    def __init__(self, settings: QueueSettings) -> None:
        url = connection_url(settings.redis_url)
        self._storage = _Windows(
            url.replace("unix://", "redis+unix://", 1),
            implementation="redispy",
            socket_timeout=settings.publish_timeout_s,
            socket_connect_timeout=settings.publish_timeout_s,
            max_connections=CONNECTIONS_MAX,
        )

    async def take(self, tenant_id: str, rates: Sequence[Rate]) -> list[Taken]:
        """Raises redis.RedisError."""
        try:
            answers = await self._storage.acquire_all(tenant_id, rates)
        except NoScriptError:  # a server that was started since
            await self._storage.load_scripts()
            answers = await self._storage.acquire_all(tenant_id, rates)
        return [Taken(rate, *answer) for rate, answer in zip(rates, answers, strict=True)]

    async def close(self) -> None:
        await self._storage.client.aclose()


class _Windows(RedisStorage):
    @property
    def client(self) -> Any:
        bridge: Any = self.bridge
        return bridge.get_connection()

    async def load_scripts(self) -> None:
        for script in self._scripts:
            await self.client.script_load(script.script)

    async def acquire_all(self, tenant_id: str, rates: Sequence[Rate]) -> list[tuple[bool, Window]]:
        """Returns whether each rate's cost was taken, and how much of it is taken now."""
        acquire, read = self._scripts
        pipeline = self.client.pipeline(transaction=False)
        for rate in rates:
            key = _item(rate).key_for(tenant_id, rate.name)
            keys = [
                self.bridge.prefixed_key(window_key)
                for window_key in (self._previous_window_key(key), self._current_window_key(key))
            ]
            pipeline.evalsha(acquire.sha, len(keys), *keys, rate.limit, WINDOW_S, rate.cost)
            pipeline.evalsha(read.sha, len(keys), *keys, WINDOW_S)
        answers = await pipeline.execute()
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return [(bool(acquired), _window(values)) for acquired, values in pairs]

    @property
    def _scripts(self) -> tuple[Any, Any]:
        bridge: Any = self.bridge
        return bridge.lua_acquire_sliding_window, bridge.lua_sliding_window


class _InProcess:
    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)

    async def take(self, tenant_id: str, rates: Sequence[Rate]) -> list[Taken]:
        return [await self._take(tenant_id, rate) for rate in rates]

    async def _take(self, tenant_id: str, rate: Rate) -> Taken:
        item = _item(rate)
        is_taken = await self._limiter.hit(item, tenant_id, rate.name, cost=rate.cost)
        window = await self._storage.get_sliding_window(item.key_for(tenant_id, rate.name), WINDOW_S)
        return Taken(rate, is_taken, Window(*window))


def _item(rate: Rate) -> RateLimitItemPerMinute:
    return RateLimitItemPerMinute(rate.limit, namespace=NAMESPACE)


def _negative(rate: Rate) -> Rate:
    return Rate(rate.name, rate.limit, -rate.cost)


def _window(values: Sequence[Any]) -> Window:
    """The script's counts, and their lives in milliseconds; a count that does not exist has none."""
    previous, previous_ttl_ms, current, current_ttl_ms = (max(0, int(value or 0)) for value in values)
    return Window(previous, previous_ttl_ms / 1000, current, current_ttl_ms / 1000)
