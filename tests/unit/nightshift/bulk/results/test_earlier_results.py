"""Digests of an earlier run are found in many files, of which a limited part is held."""

import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from nightshift.bulk.results import earlier_results
from nightshift.bulk.results.digest_files import ENTRY_BYTES, DigestWriter, digest_files
from nightshift.bulk.results.earlier_results import NEAR_FILES_MAX, EarlierDigests
from nightshift.bulk.results.row_digests import DIGEST_BYTES
from nightshift.errors import StorageUnavailable
from nightshift.objectstore import ObjectStore

ROWS = 400  # of a shard, which is a part
FILE_BYTES = 16 + ROWS * ENTRY_BYTES
SHARDS = 12
ALL = SHARDS * FILE_BYTES
NEAR = ALL - 1  # a run that is too large for its files to be held

Places = dict[bytes, tuple[int, int]]


class Recording:
    """An object store that says what was read of it."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.reads: list[str] = []
        self.error: Exception | None = None

    def read(self, key: str, *limits: int) -> bytes:
        if self.error is not None:
            raise self.error
        self.reads.append(key)
        return self._inner.read(key, *limits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def objects(objects: ObjectStore) -> Recording:
    return Recording(objects)


@pytest.fixture
def earlier(objects: Recording) -> Places:
    """Where each digest is. Each shard is a part."""
    numbers = random.Random(11)
    places: Places = {}
    for shard_no in range(SHARDS):
        digests = [numbers.randbytes(DIGEST_BYTES) for _ in range(ROWS)]
        writer = DigestWriter(objects, "acme", "job_1", shard_no)
        rows = pa.chunked_array([pa.array(range(ROWS), pa.int32())])
        writer.add(shard_no, pa.chunked_array([pa.array(digests, pa.binary(DIGEST_BYTES))]), rows)
        writer.end()
        places |= {digest: (shard_no, row) for row, digest in enumerate(digests)}
    return places


def digests_of(objects: Any, bytes_max: int) -> closing[EarlierDigests]:
    return closing(EarlierDigests(objects, list(digest_files(objects, "acme", "job_1")), bytes_max))


def of_shard(earlier: Places, shard_no: int, rows: int = ROWS) -> list[bytes]:
    return [digest for digest, (shard, _) in earlier.items() if shard == shard_no][:rows]


def others(count: int) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(count)]


def only(earlier: Places, digests: Sequence[bytes]) -> Places:
    return {digest: earlier[digest] for digest in digests}


@pytest.mark.parametrize("order", ["as written", "shuffled"])
def test_every_digest_is_found_and_no_other_and_each_file_is_read_once(
    objects: Recording, earlier: Places, order: str
) -> None:
    digests = [*earlier, *others(300)]
    if order == "shuffled":
        random.Random(5).shuffle(digests)
    places: Places = {}
    with digests_of(objects, ALL) as held:
        for start in range(0, len(digests), 100):
            places |= held.find(digests[start : start + 100], start // ROWS)
    assert places == earlier
    assert len(objects.reads) == len(set(objects.reads)) == SHARDS


def test_rows_of_a_part_read_its_file_alone(objects: Recording, earlier: Places) -> None:
    with digests_of(objects, ALL) as held:
        for start in range(0, ROWS, 50):
            digests = of_shard(earlier, 4)[start : start + 50]
            assert held.find(digests, 4) == only(earlier, digests)
    assert len(objects.reads) == 1


def test_of_a_run_beyond_the_limit_rows_of_the_same_part_and_those_beside_it_are_found(
    objects: Recording, earlier: Places
) -> None:
    near = [digest for shard_no in (3, 4, 5) for digest in of_shard(earlier, shard_no, 20)]
    with digests_of(objects, NEAR) as held:
        assert held.find([*near, *of_shard(earlier, 9, 20), *others(5)], 4) == only(earlier, near)
        assert len(objects.reads) == 3
        for shard_no in range(SHARDS):
            digests = of_shard(earlier, shard_no)
            assert held.find([*digests, *others(2)], shard_no) == only(earlier, digests)
        assert len(held._tables) <= NEAR_FILES_MAX
    assert len(objects.reads) == SHARDS


@pytest.mark.parametrize("spoil", ["removed", "cut short", "not one"])
@pytest.mark.parametrize("bytes_max", [ALL, NEAR], ids=["all files", "near ones"])
def test_a_file_that_is_lost_costs_its_own_rows(
    objects: Recording, earlier: Places, bytes_max: int, spoil: str
) -> None:
    files = list(digest_files(objects, "acme", "job_1"))
    data = objects._inner.read(files[3].key)
    objects.delete(files[3].key)
    if spoil != "removed":
        objects.put(files[3].key, data[:-9] if spoil == "cut short" else b"x" * len(data))
    with closing(EarlierDigests(objects, files, bytes_max)) as held:
        assert held.find(of_shard(earlier, 3, 20), 3) == {}
        assert held.find(of_shard(earlier, 5, 20), 5) == only(earlier, of_shard(earlier, 5, 20))


def test_a_store_that_is_away_is_not_a_lost_file(objects: Recording, earlier: Places) -> None:
    digests = of_shard(earlier, 3, 20)
    with digests_of(objects, ALL) as held:
        objects.error = StorageUnavailable("away")
        with pytest.raises(StorageUnavailable):
            held.find(digests, 3)
        objects.error = None
        assert held.find(digests, 3) == only(earlier, digests)


def test_a_disk_that_is_full_costs_running_rows_again(
    objects: Recording, earlier: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with digests_of(objects, ALL) as held:
        assert held.find(of_shard(earlier, 3, 20), 3) == {}


def test_a_file_larger_than_any_is_not_read(
    objects: Recording, earlier: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_results, "FILE_BYTES_MAX", FILE_BYTES - 1)
    with digests_of(objects, ALL) as held:
        assert held.find(of_shard(earlier, 3, 20), 3) == {}
    assert objects.reads == []


@pytest.mark.parametrize("size_bytes", [None, 0], ids=["no file", "an empty file"])
def test_a_run_without_digests_has_none(objects: Recording, earlier: Places, size_bytes: int | None) -> None:
    first, *files = [file.key for file in digest_files(objects, "acme", "job_1")]
    for key in files if size_bytes == 0 else [first, *files]:
        objects.delete(key)
    if size_bytes == 0:
        objects.put(first, b"")
    with digests_of(objects, ALL) as held:
        assert held.find(others(3), 0) == {}
