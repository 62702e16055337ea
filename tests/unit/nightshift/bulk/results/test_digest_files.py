"""Digest files say where the results of a job with a digest are."""

import random

import pyarrow as pa
import pytest

from nightshift.bulk.results import digest_files as module
from nightshift.bulk.results.digest_files import (
    CorruptDigests,
    DigestTable,
    DigestWriter,
    digest_files,
    folder,
    keys_of,
)
from nightshift.bulk.results.row_digests import DIGEST_BYTES
from nightshift.objectstore import ObjectStore

Places = dict[bytes, tuple[int, int]]


def written(objects: ObjectStore, shards: dict[int, list[bytes | None]], first_shard: int = 0) -> list[bytes]:
    """The files' bytes."""
    writer = DigestWriter(objects, "acme", "job_1", first_shard)
    for shard_no, digests in shards.items():
        rows = pa.chunked_array([pa.array(range(len(digests)), pa.int32())])
        writer.add(shard_no, pa.chunked_array([pa.array(digests, pa.binary(DIGEST_BYTES))]), rows)
    writer.end()
    return [objects.read(file.key) for file in digest_files(objects, "acme", "job_1")]


def find(data: bytes, digests: list[bytes]) -> Places:
    places = DigestTable(memoryview(data)).find(keys_of(digests))
    return {digests[position]: place for position, place in places.items()}


def test_every_digest_is_found_where_it_was_and_no_other(objects: ObjectStore) -> None:
    numbers = random.Random(7)
    shards = {shard: [numbers.randbytes(16) for _ in range(500)] for shard in (3, 4, 9)}
    [data] = written(objects, shards, first_shard=3)

    expected = {digest: (shard, row) for shard, many in shards.items() for row, digest in enumerate(many)}
    others = [numbers.randbytes(16) for _ in range(500)]
    assert find(data, [*expected, *others]) == expected


def test_results_without_a_digest_are_not_listed(objects: ObjectStore) -> None:
    [data] = written(objects, {0: [None, b"a" * 16, None], 1: [None]})

    assert find(data, [b"a" * 16]) == {b"a" * 16: (0, 1)}
    assert written(objects, {2: [None]}) == [data]


def test_many_digests_are_written_to_several_files(objects: ObjectStore, monkeypatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 100)
    digests: list[bytes | None] = [number.to_bytes(16, "little") for number in range(250)]
    files = written(objects, {shard: digests[50 * shard : 50 * shard + 50] for shard in range(5)})

    assert len(files) == 3
    assert {place for data in files for place in find(data, digests).values()} == {
        (shard, row) for shard in range(5) for row in range(50)
    }


def test_the_same_part_written_again_is_the_same_object(objects: ObjectStore) -> None:
    assert written(objects, {0: [b"a" * 16]}) == written(objects, {0: [b"a" * 16]})
    assert [info.key.startswith(folder("acme", "job_1")) for info in objects.list("digests/")] == [True]


@pytest.mark.parametrize(
    "damage", [b"", b"NSDIGEST", b"x" * 64, lambda data: data[:-1], lambda data: data + b"x"]
)
def test_what_is_no_digest_file_is_refused(objects: ObjectStore, damage) -> None:
    [data] = written(objects, {0: [b"a" * 16]})
    with pytest.raises(CorruptDigests):
        DigestTable(memoryview(damage(data) if callable(damage) else damage))
