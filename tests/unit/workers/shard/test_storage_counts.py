"""Bytes and waiting times of shards at the object store."""

import threading
from collections.abc import Iterator

import pytest

from nightshift.errors import StorageUnavailable
from nightshift.jobs.files import file_key
from nightshift.objectstore import ObjectStore
from nightshift.store import Store
from tests.unit.workers.scripted import TENANT, ManualClock, ScriptedServer, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line
from workers.shard.config import ShardDependencies
from workers.shard.shards import Shards
from workers.shard.storage_counts import CountedReader, StorageCounts


class Broken:
    def stream(self, *about: object, **more: object) -> Iterator[bytes]:
        yield b"some"
        raise StorageUnavailable("away")


def test_every_byte_that_is_read_counts_once(objects: ObjectStore) -> None:
    objects.put("a", b"0123456789")
    counts = StorageCounts()
    reader = CountedReader(objects, counts)

    assert reader.read("a") == b"0123456789"
    assert b"".join(reader.stream("a", 2, 8, chunk_bytes=4)) == b"234567"
    assert reader.head("a") == objects.head("a")
    assert [found.key for found in reader.list()] == ["a"]

    assert counts.read.bytes == 16
    assert counts.read.seconds > 0
    assert counts.written.bytes == 0


def test_what_came_before_a_fault_counts_and_the_fault_is_told() -> None:
    counts = StorageCounts()
    pieces = CountedReader(Broken(), counts).stream("a")  # type: ignore[arg-type]

    assert next(pieces) == b"some"
    with pytest.raises(StorageUnavailable):
        next(pieces)
    assert counts.read.bytes == 4


def test_a_shard_counts_its_input_and_its_segments(
    store: Store,
    objects: ObjectStore,
    dependencies: ShardDependencies,
    model: ScriptedServer,
    clock: ManualClock,
) -> None:
    line = (batch_line(0) + "\n").encode()
    objects.put(file_key(TENANT, INPUT), line)
    model.echo = True
    plan_bulk(store, INPUT)
    ended = threading.Event()
    shards = Shards(dependencies, CONFIG, on_place_freed=ended.set)

    runner = shards.run(claim_bulk(store), clock())
    assert ended.wait(10)
    assert runner.join(10)

    segments = sum(found.size_bytes for found in objects.list()) - len(line)
    assert shards.storage_counts.read.bytes == len(line)
    assert shards.storage_counts.written.bytes == segments > 0
