"""Digests of an earlier run are found in many files, of which a limited part is held."""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightshift.bulk.results import digest_index
from nightshift.bulk.results.digest_files import ENTRY_BYTES, HEADER_BYTES, DigestWriter, digest_files
from nightshift.bulk.results.digest_index import LOADED_FROM, DigestIndex
from nightshift.bulk.results.digest_prefixes import RANGE_ENTRIES_MAX
from nightshift.bulk.results.row_digests import DIGEST_BYTES
from nightshift.errors import StorageUnavailable
from nightshift.objectstore import ObjectStore, open_store

ROWS = 400  # of a shard, which is a part
FILE_BYTES = HEADER_BYTES + ROWS * ENTRY_BYTES
SLOT_BYTES = -(-FILE_BYTES // 64) * 64
PREFIX_BYTES = 1600
SHARDS = 12
ALL = SHARDS * SLOT_BYTES
PREFIXES = 2 * SLOT_BYTES + SHARDS * PREFIX_BYTES  # and two files

Places = dict[bytes, tuple[int, int]]


class Recording:
    """An object store that says what was read of it."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.whole: list[str] = []
        self.ranges: list[tuple[str, int]] = []  # key and bytes
        self.error: Exception | None = None

    def read(self, key: str, *limits: int) -> bytes:
        if self.error is not None:
            raise self.error
        self.whole.append(key)
        return self._inner.read(key, *limits)

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        if self.error is not None:
            raise self.error
        assert end is not None
        self.ranges.append((key, end - start))
        yield from self._inner.stream(key, start, end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def objects(tmp_path: Path) -> Recording:
    return Recording(open_store(tmp_path.as_uri()))


@pytest.fixture
def earlier(objects: Recording) -> Places:
    numbers = random.Random(11)
    return wrote(objects, {shard: [numbers.randbytes(16) for _ in range(ROWS)] for shard in range(SHARDS)})


def wrote(objects: Any, shards: dict[int, list[bytes]]) -> Places:
    """Each shard is a part."""
    for shard_no, digests in shards.items():
        writer = DigestWriter(objects, "acme", "job_1", shard_no)
        rows = pa.chunked_array([pa.array(range(len(digests)), pa.int32())])
        writer.add(shard_no, pa.chunked_array([pa.array(digests, pa.binary(DIGEST_BYTES))]), rows)
        writer.end()
    return {digest: (shard, row) for shard, many in shards.items() for row, digest in enumerate(many)}


def index_of(objects: Any, bytes_max: int) -> closing[DigestIndex]:
    return closing(DigestIndex(objects, list(digest_files(objects, "acme", "job_1")), bytes_max))


def of_shard(earlier: Places, shard_no: int, rows: int = ROWS) -> list[bytes]:
    return [digest for digest, (shard, _) in earlier.items() if shard == shard_no][:rows]


def others(count: int) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(count)]


def only(earlier: Places, digests: Sequence[bytes]) -> Places:
    return {digest: earlier[digest] for digest in digests if digest in earlier}


@pytest.mark.parametrize("bytes_max", [ALL, PREFIXES], ids=["all files", "prefixes"])
@pytest.mark.parametrize("order", ["as written", "shuffled"])
def test_every_digest_is_found_and_no_other(
    objects: Recording, earlier: Places, bytes_max: int, order: str
) -> None:
    digests = [*earlier, *others(300)]
    if order == "shuffled":
        random.Random(5).shuffle(digests)
    found: Places = {}
    with index_of(objects, bytes_max) as index:
        for start in range(0, len(digests), 100):
            found |= index.find(digests[start : start + 100], start // ROWS)
        assert index.held_bytes_max <= bytes_max
    assert found == earlier


def test_files_that_fit_are_read_once_and_whole(objects: Recording, earlier: Places) -> None:
    with index_of(objects, ALL) as index:
        for _ in range(3):
            index.find([*of_shard(earlier, 4), *others(10)], 4)
    assert len(objects.whole) == len(set(objects.whole)) == SHARDS
    assert objects.ranges == []


def test_rows_in_the_order_of_the_earlier_run_read_a_file_once_however_many_there_are(
    objects: Recording, earlier: Places
) -> None:
    with index_of(objects, PREFIXES) as index:
        for shard_no in range(SHARDS):
            for start in range(0, ROWS, 50):
                digests = [*of_shard(earlier, shard_no)[start : start + 50], *others(2)]
                assert len(index.find(digests, shard_no)) == 50
    assert len(objects.whole) == len(set(objects.whole)) == SHARDS
    assert len(objects.ranges) <= 3 * SHARDS  # header and prefixes of each; few are like another's


def test_few_rows_that_have_moved_are_looked_up_by_small_reads(objects: Recording, earlier: Places) -> None:
    moved = of_shard(earlier, 9, LOADED_FROM - 1)
    with index_of(objects, PREFIXES) as index:
        assert index.find(moved, 2) == only(earlier, moved)
        read = len(objects.ranges)
        assert index.find(moved, 2) == only(earlier, moved)
    assert objects.whole == []
    assert len(objects.ranges) - read == 5 * len(moved)  # the first half, and then the entry's four columns
    assert sum(size for _, size in objects.ranges[read:]) == (8 + ENTRY_BYTES) * len(moved)


def test_beyond_the_limit_rows_of_the_same_part_are_found_and_moved_ones_are_not(
    objects: Recording, earlier: Places
) -> None:
    digests = [*of_shard(earlier, 3, 20), *of_shard(earlier, 7, 20)]
    with index_of(objects, 1) as index:
        assert index.find(digests, 3) == only(earlier, digests[:20])
        assert index.find(digests, 7) == only(earlier, digests[20:])
        assert index.held_bytes_max == SLOT_BYTES


def test_prefixes_are_held_as_far_as_there_is_room(objects: Recording, earlier: Places) -> None:
    moved = {shard: of_shard(earlier, shard, 2) for shard in (1, 4, 9)}
    with index_of(objects, 2 * SLOT_BYTES + 5 * PREFIX_BYTES) as index:
        found = index.find([digest for digests in moved.values() for digest in digests], 11)
    assert found == only(earlier, [*moved[1], *moved[4]])


def test_equal_digests_are_as_many_as_they_like(objects: Recording) -> None:
    entries = 2 * RANGE_ENTRIES_MAX
    wrote(objects, {0: [b"s" * 16] * entries, 1: others(20), 2: others(20)})
    with index_of(objects, entries * (2 * ENTRY_BYTES + 5)) as index:
        assert list(index.find([b"s" * 16], 1)) == [b"s" * 16]
    assert objects.whole == []
    assert max(size for _, size in objects.ranges[2:]) == 8 * entries  # the prefixes; then half as many


def test_digests_with_the_same_prefix_are_told_apart(objects: Recording) -> None:
    def alike(number: int) -> bytes:
        return number.to_bytes(4, "little") + b"\xee" * 4 + bytes(8)

    digests = [alike(number) for number in range(ROWS)]
    earlier = wrote(objects, {0: digests, 1: others(ROWS), 2: others(ROWS)})
    with index_of(objects, 2 * SLOT_BYTES + 3 * PREFIX_BYTES) as index:
        assert index.find([alike(7), alike(ROWS)], 1) == only(earlier, [alike(7)])
    assert objects.whole == []


@pytest.mark.parametrize("spoil", ["removed", "cut short", "not one"])
@pytest.mark.parametrize("bytes_max", [ALL, PREFIXES, 1], ids=["all files", "prefixes", "own part"])
def test_a_file_that_is_lost_costs_its_own_rows(
    objects: Recording, earlier: Places, bytes_max: int, spoil: str
) -> None:
    files = list(digest_files(objects, "acme", "job_1"))
    index = DigestIndex(objects, files, bytes_max)
    key = files[3].key
    data = objects._inner.read(key)
    objects.delete(key)
    if spoil != "removed":
        objects.put(key, data[:-9] if spoil == "cut short" else b"x" * len(data))
    with closing(index):
        assert index.find(of_shard(earlier, 3, 20), 3) == {}
        assert index.find(of_shard(earlier, 5, 20), 5) == only(earlier, of_shard(earlier, 5, 20))


def test_a_store_that_is_away_is_not_a_lost_file(objects: Recording, earlier: Places) -> None:
    digests = of_shard(earlier, 3, 20)
    with index_of(objects, PREFIXES) as index:
        objects.error = StorageUnavailable("away")
        with pytest.raises(StorageUnavailable):
            index.find(digests, 3)
        objects.error = None
        assert index.find(digests, 3) == only(earlier, digests)


def test_a_disk_that_is_full_costs_running_rows_again(
    objects: Recording, earlier: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with index_of(objects, PREFIXES) as index:
        assert index.find(of_shard(earlier, 3, 20), 3) == {}


def test_a_file_larger_than_any_is_not_read(
    objects: Recording, earlier: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_index, "FILE_BYTES_MAX", FILE_BYTES - 1)
    with index_of(objects, PREFIXES) as index:
        assert index.find(of_shard(earlier, 3, 20), 3) == {}
    assert objects.whole == objects.ranges == []


def test_a_run_without_digests_has_none(objects: Recording) -> None:
    with index_of(objects, PREFIXES) as index:
        assert index.find(others(3), 0) == {}
