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
from itertools import chain
from typing import Final, NamedTuple

import redis

from nightshift.broker.token_streams import connection_url
from nightshift.settings import QueueSettings

log = logging.getLogger(__name__)

BUCKETS: Final = 32_768
BUCKET_ROWS: Final = 64  # a hash of up to 128 is stored as a list: 25 bytes a row
REMEMBERED_S: Final = 24 * 3600  # from a bucket's first row on
AWAY_S: Final = 5.0  # for which Redis is not asked again after it failed

_TAG_BYTES: Final = 6  # of a job
_PLACE: Final = struct.Struct(">II")

# A call has all of a batch in one string: packing an argument for each row would cost more than the answer.
_ENTRY: Final = """
local function entry(tag, digests, n, buckets)
    local high, low = string.byte(digests, 16 * n + 1, 16 * n + 2)
    return 'ns:first:' .. (high * 256 + low) % buckets, tag .. string.sub(digests, 16 * n + 3, 16 * n + 10)
end
"""
_NOTE: Final = f"""
{_ENTRY}
local tag, digests, places, found = ARGV[1], ARGV[2], ARGV[3], {{}}
local buckets, rows_max, ttl_s = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
for n = 0, #digests / 16 - 1 do
    local key, field = entry(tag, digests, n, buckets)
    local first = string.sub(places, 8 * n + 1, 8 * n + 8)
    if redis.call('HSETNX', key, field, first) == 0 then
        first = redis.call('HGET', key, field)
    else
        local rows = redis.call('HLEN', key)
        if rows == 1 then
            redis.call('EXPIRE', key, ttl_s)
        elseif rows > rows_max then
            redis.call('HDEL', key, redis.call('HKEYS', key)[1])
        end
    end
    found[n + 1] = first
end
return table.concat(found)
"""
_REPLACE: Final = f"""
{_ENTRY}
local key, field = entry(ARGV[1], ARGV[2], 0, tonumber(ARGV[5]))
if redis.call('HGET', key, field) == ARGV[3] then
    redis.call('HSET', key, field, ARGV[4])
end
"""


class RowPlace(NamedTuple):
    """Of a row in its job."""

    shard_no: int
    row: int


class FirstRows:
    """Thread-safe. Redis Cluster is not served: a script names its keys itself."""

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
        own = struct.pack(f">{2 * len(places)}I", *chain.from_iterable(places))
        found = self._ask(
            self._note, _tag(job_id), b"".join(digests), own, BUCKETS, BUCKET_ROWS, REMEMBERED_S
        )
        if found is None or found == own:
            return places
        if len(found) != len(own):
            log.warning("first rows are not ours", extra={"action": "first_rows_spoilt"})
            return places
        return [RowPlace(*place) for place in _PLACE.iter_unpack(found)]

    def replace(self, job_id: str, digest: bytes, lost: RowPlace, by: RowPlace) -> None:
        """The row that was first is not run: this one is, unless another is known by now."""
        self._ask(self._replace, _tag(job_id), digest, _PLACE.pack(*lost), _PLACE.pack(*by), BUCKETS)

    def close(self) -> None:
        self._redis.close()

    def _ask(self, script: Callable[..., bytes | None], *args: bytes | int) -> bytes | None:
        """None: Redis is away, or there is no answer."""
        if self._clock() < self._away_until_s:
            return None
        try:
            return script(args=args)
        except redis.RedisError as error:
            self._away_until_s = self._clock() + AWAY_S
            about = {"action": "first_rows_away", "reason": str(error)}
            log.warning("rows that other workers run may be run again", extra=about)
            return None


def _tag(job_id: str) -> bytes:
    return hashlib.blake2b(job_id.encode(), digest_size=_TAG_BYTES).digest()
