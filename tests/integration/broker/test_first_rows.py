"""Of each request of a job the row that was read first, in a real Valkey."""

import hashlib
from collections.abc import Iterator

import pytest

from nightshift.broker import first_rows
from nightshift.broker.first_rows import BUCKET_ROWS, FirstRows, RowPlace
from tests.integration.servers import ValkeyServer


@pytest.fixture
def rows(valkey: ValkeyServer) -> Iterator[FirstRows]:
    rows = FirstRows(valkey.settings)
    yield rows
    rows.close()


def digests(*numbers: int) -> list[bytes]:
    return [hashlib.blake2b(bytes([number]), digest_size=16).digest() for number in numbers]


def places(shard_no: int, count: int) -> list[RowPlace]:
    return [RowPlace(shard_no, row) for row in range(count)]


def test_the_first_row_stays_the_first(rows: FirstRows, valkey: ValkeyServer) -> None:
    other_worker = FirstRows(valkey.settings)
    assert rows.note("job", digests(1, 2, 1), places(0, 3)) == [(0, 0), (0, 1), (0, 0)]
    assert other_worker.note("job", digests(3, 2), places(7, 2)) == [(7, 0), (0, 1)]
    assert rows.note("job", digests(3), places(0, 1)) == [(7, 0)]
    other_worker.close()


def test_jobs_do_not_share(rows: FirstRows) -> None:
    rows.note("job", digests(1), places(0, 1))
    assert rows.note("other", digests(1), places(5, 1)) == [(5, 0)]


def test_the_largest_numbers_fit(rows: FirstRows) -> None:
    last = RowPlace(2**32 - 1, 2**32 - 1)
    assert rows.note("job", digests(1), [last]) == [last]


def test_one_that_is_lost_is_replaced_once(rows: FirstRows) -> None:
    [digest] = digests(1)
    lost, second, third = RowPlace(0, 0), RowPlace(1, 0), RowPlace(2, 0)
    rows.note("job", [digest], [lost])
    rows.replace("job", digest, lost, second)
    rows.replace("job", digest, lost, third)

    assert rows.note("job", [digest], [lost]) == [second]


def test_a_full_bucket_forgets_its_oldest_row(rows: FirstRows, valkey: ValkeyServer, monkeypatch) -> None:
    monkeypatch.setattr(first_rows, "BUCKETS", 1)
    numbers = range(BUCKET_ROWS + 1)
    rows.note("job", digests(*numbers), places(0, len(numbers)))
    [key] = valkey.client.keys("ns:first:*")

    assert valkey.client.hlen(key) == BUCKET_ROWS
    assert valkey.client.object("encoding", key) == b"listpack", "30 bytes a row, not 100"
    assert rows.note("job", digests(1), places(9, 1)) == [(0, 1)]
    assert rows.note("job", digests(0), places(9, 1)) == [(9, 0)]


def test_nothing_is_remembered_for_ever(rows: FirstRows, valkey: ValkeyServer) -> None:
    rows.note("job", digests(1), places(0, 1))
    [key] = valkey.client.keys("ns:first:*")
    assert 0 < valkey.client.ttl(key) <= first_rows.REMEMBERED_S


def test_without_redis_each_row_is_the_first_and_redis_is_asked_again_later(
    own_valkey: ValkeyServer,
) -> None:
    now_s = [0.0]
    rows = FirstRows(own_valkey.settings, clock=lambda: now_s[0])
    rows.note("job", digests(1), places(0, 1))
    own_valkey.kill()
    assert rows.note("job", digests(1), places(1, 1)) == [(1, 0)]
    rows.replace("job", digests(1)[0], RowPlace(0, 0), RowPlace(1, 0))

    own_valkey.forget()
    own_valkey.start()
    rows.note("job", digests(2), places(2, 1))
    assert own_valkey.client.keys("ns:first:*") == [], "it is not asked at once"
    now_s[0] += first_rows.AWAY_S
    assert rows.note("job", digests(1), places(3, 1)) == [(3, 0)]
    rows.close()


def test_a_value_that_is_not_ours_is_no_place(rows: FirstRows, valkey: ValkeyServer) -> None:
    """Wrong content of Redis does not stop a worker."""
    rows.note("job", digests(1), places(0, 1))
    [key] = valkey.client.keys("ns:first:*")
    [field] = valkey.client.hkeys(key)
    valkey.client.hset(key, field, b"?")
    assert rows.note("job", digests(1), places(4, 1)) == [(4, 0)]
    valkey.client.set(key, b"not a hash")
    assert rows.note("job", digests(1), places(4, 1)) == [(4, 0)]
