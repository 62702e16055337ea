"""Results of a job that has ended, found by the digests of their rows."""

import logging
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from tempfile import TemporaryFile
from typing import IO, Final

from nightshift.errors import ObjectNotFound
from nightshift.jobs import Job, Segment
from nightshift.objectstore import ObjectDamaged, ObjectStore, read_verified
from nightshift.output.digest_files import (
    ENTRIES_MAX,
    ENTRY_BYTES,
    CorruptDigests,
    DigestFileName,
    DigestTable,
    Halves,
    digest_files,
    halves_of,
)
from nightshift.output.row_results import RowResult, ShardHead
from nightshift.output.segments import CorruptSegment
from nightshift.output.shard_results import ShardResults
from nightshift.store import Store

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 4 * ENTRIES_MAX * ENTRY_BYTES
HELD_BYTES: Final = 128 * 1024 * 1024  # of results in open shards: those of the next rows are often there
HELD_SHARDS: Final = 256

LOST: Final = (ObjectNotFound, ObjectDamaged, CorruptSegment, CorruptDigests, OSError)


class EarlierResults:
    """Of one job. Thread-safe. `close` it."""

    def __init__(self, store: Store, objects: ObjectStore, job: Job) -> None:
        self._store = store
        self._objects = objects
        self._job = job
        self._lock = threading.Lock()
        self._index: _Index | None = None
        self._shards: OrderedDict[int, _OpenShard | None] = OrderedDict()  # None: its results are lost
        self._held_bytes = 0

    @property
    def tenant_id(self) -> str:
        return self._job.tenant_id

    def find(self, digests: Sequence[bytes], near_shard: int) -> Mapping[bytes, RowResult]:
        """The results there are. Rows near `near_shard` are looked for there first.

        Results that were deleted or are damaged are not found. Raises StorageUnavailable and
        DatabaseUnavailable.
        """
        with self._lock:
            if self._index is None:
                self._index = _Index(self._objects, self._job)
            places = self._index.find(digests, near_shard)
            by_shard: dict[int, list[tuple[bytes, int]]] = {}
            for digest, (shard_no, row) in places.items():
                by_shard.setdefault(shard_no, []).append((digest, row))
            found: dict[bytes, RowResult] = {}
            for shard_no, wanted in by_shard.items():
                found |= self._of_shard(shard_no, wanted)
            return found

    def close(self) -> None:
        with self._lock:
            while self._shards:
                self._drop_oldest()
            if self._index is not None:
                self._index.close()
                self._index = None

    def _of_shard(self, shard_no: int, wanted: Sequence[tuple[bytes, int]]) -> dict[bytes, RowResult]:
        shard = self._opened(shard_no)
        if shard is None:
            return {}
        digests = {row: digest for digest, row in wanted}
        results = shard.results.of_rows(sorted(digests))
        return {
            digests[result.row]: result
            for result in results
            if result.succeeded and result.digest == digests[result.row]
        }

    def _opened(self, shard_no: int) -> "_OpenShard | None":
        if shard_no in self._shards:
            self._shards.move_to_end(shard_no)
            return self._shards[shard_no]
        opened: _OpenShard | None = None
        try:
            opened = self._open(shard_no)
        except LOST as error:
            log.warning(
                "earlier results are gone: %s",
                error,
                extra={"action": "reuse_lost", "job": self._job.id, "shard_no": shard_no},
            )
        self._shards[shard_no] = opened
        self._held_bytes += 0 if opened is None else opened.size_bytes
        while len(self._shards) > 1 and (self._held_bytes > HELD_BYTES or len(self._shards) > HELD_SHARDS):
            self._drop_oldest()
        return opened

    def _open(self, shard_no: int) -> "_OpenShard | None":
        with self._store.snapshot() as tx:
            page = tx.shards.of_job(self._job.id, after_no=shard_no - 1, limit=1)
            if not page or page[0].shard_no != shard_no:
                return None
            segments = tx.shards.segments(page[0].id)
        return _OpenShard(self._objects, segments, ShardHead.of(self._job, shard_no))

    def _drop_oldest(self) -> None:
        _, shard = self._shards.popitem(last=False)
        if shard is not None:
            self._held_bytes -= shard.size_bytes
            shard.close()


class _OpenShard:
    def __init__(self, objects: ObjectStore, segments: Sequence[Segment], head: ShardHead) -> None:
        self._held = ExitStack()
        self.results = self._held.enter_context(ShardResults(objects, segments, head))
        self.size_bytes = sum(segment.size_bytes for segment in segments)

    def close(self) -> None:
        self._held.close()


class _Index:
    """A job's digest files, copied to one temporary file as they are needed: 24 bytes for each row."""

    def __init__(self, objects: ObjectStore, job: Job) -> None:
        """Raises StorageError."""
        self._objects = objects
        self._files = list(digest_files(objects, job.tenant_id, job.id))
        self._tables: list[DigestTable | None] = [None] * len(self._files)
        self._is_lost = [False] * len(self._files)
        sizes = [_aligned(file.size_bytes) for file in self._files]
        self._offsets = [0, *accumulate(sizes)][:-1]
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        if sum(sizes):
            self._file = TemporaryFile()  # noqa: SIM115 closed with the index
            self._file.truncate(sum(sizes))
            self._map = mmap.mmap(self._file.fileno(), sum(sizes), access=mmap.ACCESS_READ)

    def close(self) -> None:
        """What is mapped stays until nothing refers to it."""
        if self._file is not None:
            self._file.close()

    def find(self, digests: Sequence[bytes], near_shard: int) -> dict[bytes, tuple[int, int]]:
        """Shard and row of those that are there. Raises StorageError."""
        found: dict[bytes, tuple[int, int]] = {}
        wanted = list(dict.fromkeys(digests))
        for number in self._in_order(near_shard):
            if not wanted:
                break
            table = self._table(number)
            if table is None:
                continue
            halves: Halves = halves_of(b"".join(wanted))
            places = table.find(halves)
            if places:
                found |= {wanted[position]: place for position, place in places.items()}
                wanted = [digest for position, digest in enumerate(wanted) if position not in places]
        return found

    def _in_order(self, near_shard: int) -> list[int]:
        """Files whose first shards are near come first."""
        numbers = range(len(self._files))
        return sorted(numbers, key=lambda number: abs(self._files[number].first_shard - near_shard))

    def _table(self, number: int) -> DigestTable | None:
        if self._tables[number] is None and not self._is_lost[number]:
            try:
                self._tables[number] = self._loaded(number, self._files[number])
            except LOST as error:
                log.warning("digests are gone: %s", error, extra={"action": "reuse_lost"})
                self._is_lost[number] = True
        return self._tables[number]

    def _loaded(self, number: int, file: DigestFileName) -> DigestTable:
        assert self._file is not None, "there are files"
        assert self._map is not None, "there are files"
        data = read_verified(self._objects, file.key, file.sha256, FILE_BYTES_MAX)
        start = self._offsets[number]
        os.pwrite(
            self._file.fileno(), data, start
        )  # not through the mapping: a full disk would end the process
        return DigestTable(memoryview(self._map)[start : start + len(data)])


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // 64) * 64
