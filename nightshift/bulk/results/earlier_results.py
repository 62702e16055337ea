"""Results of a job that has ended, found by the digests of their rows.

Digest files of up to `DIGEST_BYTES_MAX` are kept in a temporary file, each from its first use on. Of a larger
run, a row is looked for in the digest files of its own part and of the two beside it. A row that is not found
is run again.
"""

import logging
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from tempfile import TemporaryFile
from typing import IO, Final

from nightshift.bulk.results.digest_files import (
    ENTRIES_MAX,
    ENTRY_BYTES,
    CorruptDigests,
    DigestFileName,
    DigestTable,
    digest_files,
    keys_of,
)
from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import CorruptSegment
from nightshift.bulk.results.shard_results import ShardResults
from nightshift.errors import ObjectNotFound
from nightshift.jobs import Job, Segment
from nightshift.objectstore import MIB, ObjectDamaged, ObjectStore, read_verified
from nightshift.store import Store

log = logging.getLogger(__name__)

DIGEST_BYTES_MAX: Final = 512 * MIB  # for one job: some 33 million rows
FILE_BYTES_MAX: Final = 4 * ENTRIES_MAX * ENTRY_BYTES
NEAR_FILES_MAX: Final = 8  # held in memory of a larger run, 4 MB each
HELD_BYTES: Final = 128 * MIB  # results in open shards: those of the next rows are often there
HELD_SHARDS: Final = 256
SHARD_MEMORY_BYTES_MAX: Final = 4 * MIB  # a shard's results; a larger one has a temporary file

_LOST: Final = (ObjectNotFound, ObjectDamaged, CorruptDigests, CorruptSegment, OSError)


class EarlierResults:
    """One job's results. Thread-safe. `close` it."""

    def __init__(
        self, store: Store, objects: ObjectStore, job: Job, digest_bytes_max: int = DIGEST_BYTES_MAX
    ) -> None:
        """`digest_bytes_max` limits the digest files on disk."""
        self._digest_bytes_max = digest_bytes_max
        self._store = store
        self._objects = objects
        self._job = job
        self._lock = threading.Lock()
        self._digests: EarlierDigests | None = None
        self._shards = OpenShards(objects)

    @property
    def tenant_id(self) -> str:
        return self._job.tenant_id

    def find(self, digests: Sequence[bytes], near_shard: int) -> Mapping[bytes, RowResult]:
        """Returns the results with these digests. Rows near `near_shard` are looked for there first.

        Results that were deleted or are damaged are not found. Raises StorageUnavailable and
        DatabaseUnavailable.
        """
        with self._lock:
            if self._digests is None:
                files = digest_files(self._objects, self._job.tenant_id, self._job.id)
                self._digests = EarlierDigests(self._objects, list(files), self._digest_bytes_max)
            by_shard: dict[int, dict[int, bytes]] = {}
            for digest, (shard_no, row) in self._digests.find(digests, near_shard).items():
                by_shard.setdefault(shard_no, {})[row] = digest
            results: dict[bytes, RowResult] = {}
            for shard_no, wanted in by_shard.items():
                results |= self._results(shard_no, wanted)
            return results

    def close(self) -> None:
        with self._lock:
            self._shards.close()
            if self._digests is not None:
                self._digests.close()
                self._digests = None

    def _results(self, shard_no: int, wanted: Mapping[int, bytes]) -> dict[bytes, RowResult]:
        """The good results of these rows that have these digests."""
        if shard_no not in self._shards:
            try:
                self._shards.open(shard_no, self._segments(shard_no))
            except _LOST as error:
                about = {"action": "reuse_lost", "job": self._job.id, "shard_no": shard_no}
                log.warning("results are gone: %s", error, extra=about)
                self._shards.set_lost(shard_no)
        results = self._shards.of_rows(shard_no, sorted(wanted))
        return {
            wanted[result.row]: result
            for result in results
            if result.succeeded and result.digest == wanted[result.row]
        }

    def _segments(self, shard_no: int) -> Sequence[Segment]:
        with self._store.snapshot() as tx:
            page = tx.shards.of_job(self._job.id, after_no=shard_no - 1, limit=1)
            if not page or page[0].shard_no != shard_no:
                return ()
            return tx.shards.segments(page[0].id)


class EarlierDigests:
    """The places of a job's results, by digest. Not thread-safe. `close` it."""

    def __init__(self, objects: ObjectStore, files: Sequence[DigestFileName], bytes_max: int) -> None:
        """`files` are sorted by part. Nothing is read yet. Raises OSError."""
        self._objects = objects
        self._files = files
        self._starts = [0, *accumulate(file.size_bytes for file in files)]
        self._tables: OrderedDict[int, DigestTable | None] = OrderedDict()  # each file's; None: it is lost
        self._file: IO[bytes] | None = None
        self._map: memoryview | None = None
        self._holds_all = self._starts[-1] <= bytes_max
        if self._holds_all and self._starts[-1]:
            self._file = TemporaryFile()  # noqa: SIM115 closed with the digests
            self._file.truncate(self._starts[-1])
            mapped = mmap.mmap(self._file.fileno(), self._starts[-1], access=mmap.ACCESS_READ)
            self._map = memoryview(mapped)

    def close(self) -> None:
        """Closes the temporary file. Its mapping stays until nothing refers to it."""
        self._tables.clear()
        if self._file is not None:
            self._file.close()

    def find(self, digests: Sequence[bytes], near_shard: int) -> dict[bytes, tuple[int, int]]:
        """Shard and row of the results that have these digests, or may have them. Raises StorageError."""
        places: dict[bytes, tuple[int, int]] = {}
        wanted = list(dict.fromkeys(digests))
        for number in self._in_order(near_shard):
            if not wanted:
                break
            table = self._table(number)
            if table is not None:
                found_at = table.find(keys_of(wanted))
                places |= {wanted[position]: place for position, place in found_at.items()}
                wanted = [digest for digest in wanted if digest not in places]
        return places

    def _in_order(self, near_shard: int) -> Iterable[int]:
        """The files to look at: those of the part that the shard is in if the job was cut alike, then others,
        the nearest first.
        """
        parts = sorted({file.first_shard for file in self._files})
        begun = [first_shard for first_shard in parts if first_shard <= near_shard]
        own = begun[-1] if begun else 0
        at = max(0, len(begun) - 1)
        near = parts if self._holds_all else parts[max(0, at - 1) : at + 2]
        distances = {part: (part != own, abs(part - near_shard)) for part in near}
        numbers = [number for number, file in enumerate(self._files) if file.first_shard in distances]
        return sorted(numbers, key=lambda number: distances[self._files[number].first_shard])

    def _table(self, number: int) -> DigestTable | None:
        """The table of a shard's digests. None: the file is lost. Raises StorageError."""
        if number not in self._tables:
            try:
                self._tables[number] = self._loaded(number)
            except _LOST as error:
                log.warning("digests are gone: %s", error, extra={"action": "reuse_lost"})
                self._tables[number] = None
        self._tables.move_to_end(number)
        if not self._holds_all and len(self._tables) > NEAR_FILES_MAX:
            self._tables.popitem(last=False)
        return self._tables[number]

    def _loaded(self, number: int) -> DigestTable:
        file, start = self._files[number], self._starts[number]
        if file.size_bytes > FILE_BYTES_MAX:
            raise CorruptDigests(f"A digest file has {file.size_bytes} bytes, and is none.")
        data: bytes | memoryview = read_verified(self._objects, file.key, file.sha256, FILE_BYTES_MAX)
        table = DigestTable(data)
        if self._file is None or self._map is None:
            return table
        if len(data) != file.size_bytes:
            raise CorruptDigests("A digest file has changed its size.")
        _write(self._file, data, start)
        return DigestTable(self._map[start : start + len(data)])


def _write(file: IO[bytes], data: bytes | memoryview, start: int) -> None:
    """Writes without a mapping, in which a full disk would end the process. Raises OSError."""
    view, done = memoryview(data), 0
    while done < len(view):
        done += os.pwrite(file.fileno(), view[done:], start + done)


@dataclass(frozen=True)
class _OpenShard:
    results: ShardResults
    size_bytes: int
    close: Callable[[], None]


class OpenShards:
    """Results of shards that are kept open. Not thread-safe. `close` it."""

    def __init__(self, objects: ObjectStore, held_bytes: int = HELD_BYTES) -> None:
        self._objects = objects
        self._held_bytes_max = held_bytes
        self._shards: OrderedDict[int, _OpenShard | None] = OrderedDict()  # None: it is lost
        self._held_bytes = 0

    def __contains__(self, shard_no: int) -> bool:
        return shard_no in self._shards

    def open(self, shard_no: int, segments: Sequence[Segment]) -> None:
        """Closes others to keep the limits. Raises one of `_LOST`, and StorageUnavailable."""
        stack = ExitStack()
        results = stack.enter_context(ShardResults(self._objects, segments, SHARD_MEMORY_BYTES_MAX))
        opened = _OpenShard(results, sum(segment.size_bytes for segment in segments), stack.close)
        self._shards[shard_no] = opened
        self._held_bytes += opened.size_bytes
        while len(self._shards) > 1 and (
            self._held_bytes > self._held_bytes_max or len(self._shards) > HELD_SHARDS
        ):
            self._close_oldest()

    def set_lost(self, shard_no: int) -> None:
        self._shards[shard_no] = None

    def of_rows(self, shard_no: int, rows: Sequence[int]) -> list[RowResult]:
        """The results of those of these rows that have one; none of a lost shard."""
        self._shards.move_to_end(shard_no)
        opened = self._shards[shard_no]
        return [] if opened is None else opened.results.of_rows(rows)

    def close(self) -> None:
        while self._shards:
            self._close_oldest()

    def _close_oldest(self) -> None:
        _, opened = self._shards.popitem(last=False)
        if opened is not None:
            self._held_bytes -= opened.size_bytes
            opened.close()
