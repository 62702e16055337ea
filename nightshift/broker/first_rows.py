"""Of each request of a job, the row that was read first. Rows with the same one wait for its result.

    ns:first:{bucket}     {job, digest}: {shard, row} …

A hint: where Redis is away, was emptied or has forgotten, a row takes itself for the first, and is run.
What is remembered is bounded: a full bucket forgets its oldest row.
"""

import hashlib
import logging
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import redis

from nightshift.broker.token_streams import connection_url
from nightshift.settings import QueueSettings

log = logging.getLogger(__name__)

BUCKETS: Final = 32_768
BUCKET_ROWS: Final = 64  # a hash of up to 128 is stored as a list: 30 bytes a row
REMEMBERED_S: Final = 24 * 3600  # from a bucket's first row on
AWAY_S: Final = 5.0  # for which Redis is not asked again after it failed

_NOTE: Final = """
local found = {}
for i, key in ipairs(KEYS) do
    local field, place = ARGV[2 * i + 1], ARGV[2 * i + 2]
    local first = redis.call('HGET', key, field)
    if not first then
        local rows = redis.call('HLEN', key)
        if rows >= tonumber(ARGV[1]) then
            redis.call('HDEL', key, redis.call('HKEYS', key)[1])
        end
        redis.call('HSET', key, field, place)
        if rows == 0 then
            redis.call('EXPIRE', key, ARGV[2])
        end
        first = place
    end
    found[i] = first
end
return found
"""
_REPLACE: Final = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return redis.call('HGET', KEYS[1], ARGV[1])
"""
_PLACE: Final = struct.Struct(">II")


class RowPlace(NamedTuple):
    """Of a row in its job."""

    shard_no: int
    row: int


class FirstRows:
    """Thread-safe."""

    def __init__(self, settings: QueueSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis.Redis.from_url(
            connection_url(settings.redis_url),
            socket_timeout=settings.publish_timeout_s,
            socket_connect_timeout=settings.publish_timeout_s,
        )
        self._note = self._redis.register_script(_NOTE)
        self._replace = self._redis.register_script(_REPLACE)
        self._clock = clock
        self._away_until_s = 0.0

    def note(self, job_id: str, digests: Sequence[bytes], places: Sequence[RowPlace]) -> Sequence[RowPlace]:
        """The first row with each digest: this one, unless another is known. One round trip."""
        if not digests or self._clock() < self._away_until_s:
            return places
        keys, fields = zip(*(_entry(job_id, digest) for digest in digests), strict=True)
        args: list[int | bytes] = [BUCKET_ROWS, REMEMBERED_S]
        for field, place in zip(fields, places, strict=True):
            args += (field, _PLACE.pack(*place))
        try:
            return [RowPlace(*_PLACE.unpack(each)) for each in self._note(keys=keys, args=args)]
        except redis.RedisError as error:
            self._is_away(error)
        except struct.error:
            log.warning("first rows are not ours", extra={"action": "first_rows_spoilt"})
        return places

    def replace(self, job_id: str, digest: bytes, lost: RowPlace, by: RowPlace) -> None:
        """The row that was first is not run: this one is, unless another is known by now."""
        if self._clock() < self._away_until_s:
            return
        key, field = _entry(job_id, digest)
        try:
            self._replace(keys=[key], args=[field, _PLACE.pack(*lost), _PLACE.pack(*by)])
        except redis.RedisError as error:
            self._is_away(error)

    def close(self) -> None:
        self._redis.close()

    def _is_away(self, error: redis.RedisError) -> None:
        self._away_until_s = self._clock() + AWAY_S
        about = {"action": "first_rows_away", "reason": str(error)}
        log.warning("rows that other workers run may be run again", extra=about)


def _entry(job_id: str, digest: bytes) -> tuple[str, bytes]:
    """A bucket, and a field of it. A digest is of any tenant's and job's text: the job decides with it."""
    mixed = hashlib.blake2b(digest, digest_size=14, key=job_id.encode()[:64]).digest()
    return f"ns:first:{int.from_bytes(mixed[:2], 'big') % BUCKETS}", mixed[2:]
