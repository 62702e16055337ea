"""Tokens from a worker to a waiting client: one bounded, expiring Redis stream per online request.

The answer is in the database; a lost or cut stream costs only the live tokens.

    ns:stream:{shard_id}     {"delta": json} …  {"end": ""}
"""

import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
import redis.asyncio

from nightshift.jobs import JsonObject
from nightshift.process.settings import QueueSettings

log = logging.getLogger(__name__)

STREAM_TTL_S: Final = 600  # after the last write
STREAM_ENTRIES_MAX: Final = 10_000
READ_BLOCK_MS: Final = 1000
CONNECTIONS_MAX: Final = 1024  # for streaming requests, per API process


def connection_url(redis_url: str) -> str:
    """redis-py's form of kombu's `redis+socket:///path`: `unix:///path`."""
    return redis_url.replace("redis+socket://", "unix://", 1)


def connect(settings: QueueSettings, timeout_s: float) -> redis.Redis:
    """A client that waits this long for an answer. It connects when it is first used."""
    return redis.Redis.from_url(
        connection_url(settings.redis_url),
        socket_timeout=timeout_s,
        socket_connect_timeout=settings.publish_timeout_s,
    )


class BrokenStream(Exception):
    """An entry that no worker wrote. The rest is not trusted; the answer is in the database."""


@dataclass(frozen=True)
class Delta:
    """A piece of an answer, in a form that the worker and the API share."""

    shard_id: str
    data: JsonObject


@dataclass(frozen=True)
class End:
    """The answer is in the database."""

    shard_id: str


class StreamWriter:
    """Writes in pipelines. An unreachable Redis costs one bounded attempt."""

    def __init__(self, settings: QueueSettings) -> None:
        self._redis = connect(settings, settings.publish_timeout_s)

    def write(self, entries: Sequence[Delta | End]) -> bool:
        """Appends entries in order. False: Redis is away, and they are dropped."""
        pipeline = self._redis.pipeline(transaction=False)
        for entry in entries:
            key = _key(entry.shard_id)
            fields: dict[Any, Any] = (
                {"end": ""} if isinstance(entry, End) else {"delta": json.dumps(entry.data)}
            )
            pipeline.xadd(key, fields, maxlen=STREAM_ENTRIES_MAX, approximate=True)
        for shard_id in {entry.shard_id for entry in entries}:
            pipeline.expire(_key(shard_id), STREAM_TTL_S)
        try:
            pipeline.execute()
        except redis.RedisError as error:
            log.warning("stream entries dropped", extra={"action": "stream_dropped", "reason": str(error)})
            return False
        return True

    def close(self) -> None:
        self._redis.close()


class StreamDeleter:
    """Deletes streams before they expire by themselves."""

    def __init__(self, settings: QueueSettings) -> None:
        self._redis = connect(settings, settings.publish_timeout_s)

    def delete(self, shard_ids: Sequence[str]) -> None:
        """Deletes the streams. While Redis is away, they are left to expire."""
        if not shard_ids:
            return
        try:
            self._redis.unlink(*map(_key, shard_ids))
        except redis.RedisError as error:
            log.warning("streams left behind", extra={"action": "streams_left", "reason": str(error)})

    def close(self) -> None:
        self._redis.close()


class StreamReader:
    def __init__(self, settings: QueueSettings) -> None:
        self._redis = redis.asyncio.Redis.from_url(
            connection_url(settings.redis_url),
            max_connections=CONNECTIONS_MAX,
            protocol=2,  # answers as lists of (stream, entries)
            socket_connect_timeout=settings.publish_timeout_s,
            socket_timeout=READ_BLOCK_MS / 1000 + settings.publish_timeout_s,
        )

    async def read(self, shard_id: str) -> AsyncIterator[Delta | End | None]:
        """Entries from the first one to End, and None every second without one, when the reader can check the
        database.

        Raises redis.RedisError when Redis is away, and BrokenStream at an entry that no worker wrote.
        """
        last_id: bytes | str = "0"
        while True:
            answer: Any = await self._redis.xread({_key(shard_id): last_id}, block=READ_BLOCK_MS, count=100)
            if not answer:
                yield None
                continue
            for entry_id, fields in answer[0][1]:
                last_id = entry_id
                if b"end" in fields:
                    yield End(shard_id)
                    return
                yield Delta(shard_id, _data(fields))

    async def close(self) -> None:
        await self._redis.aclose()


def _data(fields: dict[bytes, bytes]) -> JsonObject:
    try:
        data = json.loads(fields[b"delta"])
    except (KeyError, ValueError) as error:
        raise BrokenStream("an entry without a delta in JSON") from error
    if not isinstance(data, dict):
        raise BrokenStream("an entry whose delta is no object")
    return data


def _key(shard_id: str) -> str:
    return f"ns:stream:{shard_id}"
