"""Digest files: where a job's results with a digest are, sorted by digest; one or more for each part.

    digests/{tenant}/{job}/{first shard}-{number}-{sha256}

    magic, number of entries (uint64)
    the first 8 bytes of each digest (uint64), the other 8, the shard of each, the row of each (uint32)

Integers are little-endian. A file says only where to look: who reads a result compares its digest.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nightshift.bulk.results.row_digests import DIGEST_BYTES
from nightshift.errors import StorageError
from nightshift.jobs import Job
from nightshift.objectstore import ObjectStore, read_verified

MAGIC: Final = b"NSDIGEST"
ENTRY_BYTES: Final = DIGEST_BYTES + 8
ENTRIES_MAX: Final = 250_000  # of a file: its writer holds 24 bytes of each, and 12 more as it sorts them
PIECE_ENTRIES: Final = 16_384  # of a column that is written

_HEADER: Final = struct.Struct("<8sQ")
HEADER_BYTES: Final = _HEADER.size
_COLUMNS: Final = (("<u8", 8), ("<u8", 8), ("<u4", 4), ("<u4", 4))
_NAME: Final = re.compile(r"(?P<shard>[0-9]+)-[0-9]+-(?P<sha256>[0-9a-f]{64})")

Halves = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Of some digests."""


class CorruptDigests(StorageError):
    """A digest file is none."""

    default_code = "corrupt_digests"


def folder(tenant_id: str, job_id: str) -> str:
    return f"digests/{tenant_id}/{job_id}/"


def halves_of(digests: bytes) -> Halves:
    """Of digests one after another."""
    both = np.frombuffer(digests, "<u8").reshape(-1, 2)
    return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])


class DigestWriter:
    """Digests of one part's results, written to files as they become many."""

    def __init__(self, objects: ObjectStore, tenant_id: str, job_id: str, first_shard: int) -> None:
        """`first_shard`: of the part."""
        self._objects = objects
        self._folder = folder(tenant_id, job_id)
        self._first_shard = first_shard
        self._held: _Entries | None = None
        self._files = 0

    def add(self, shard_no: int, digests: "pa.ChunkedArray", rows: "pa.ChunkedArray") -> None:
        """Of results of the shard, some without a digest. Raises StorageError."""
        known = digests.is_valid()
        both = halves_of(b"".join(digests.filter(known).to_pylist()))
        numbers, start = rows.filter(known).to_numpy(), 0
        while start < len(numbers):
            self._held = self._held or _Entries(ENTRIES_MAX)
            start += self._held.add(shard_no, (both[0][start:], both[1][start:]), numbers[start:])
            if self._held.is_full:
                self.end()

    def end(self) -> None:
        """Write what is held. Raises StorageError."""
        if self._held is None:
            return
        held, self._held = self._held, None
        order = held.order()
        sha256 = hashlib.sha256()
        for piece in held.pieces(order):
            sha256.update(piece)
        name = f"{_part(self._first_shard)}{self._files}-{sha256.hexdigest()}"
        self._objects.put(self._folder + name, held.pieces(order))
        self._files += 1


class _Entries:
    """Of a file, in columns that have room for all of them: a part's would lie in very many small pieces."""

    def __init__(self, entries_max: int) -> None:
        self._columns = [np.empty(entries_max, dtype) for dtype, _ in _COLUMNS]
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._count == len(self._columns[0])

    def add(self, shard_no: int, digests: Halves, rows: NDArray[Any]) -> int:
        """As many as there is room for. Returns how many."""
        end = min(self._count + len(rows), len(self._columns[0]))
        count = end - self._count
        for column, values in zip(self._columns, (*digests, None, rows), strict=True):
            column[self._count : end] = shard_no if values is None else values[:count]
        self._count = end
        return count

    def order(self) -> NDArray[np.int64]:
        """By digest."""
        first, second, *_ = self._columns
        return np.lexsort((second[: self._count], first[: self._count]))

    def pieces(self, order: NDArray[np.int64]) -> Iterator[bytes]:
        """Of the file."""
        yield _HEADER.pack(MAGIC, self._count)
        for column in self._columns:
            for start in range(0, self._count, PIECE_ENTRIES):
                yield column[order[start : start + PIECE_ENTRIES]].tobytes()


@dataclass(frozen=True)
class DigestFileName:
    key: str
    first_shard: int
    sha256: str
    size_bytes: int


def digest_files(
    objects: ObjectStore, tenant_id: str, job_id: str, of_part: str = ""
) -> Iterator[DigestFileName]:
    """A job's, or those whose names begin so. Raises StorageError."""
    for info in objects.list(folder(tenant_id, job_id) + of_part):
        found = _NAME.fullmatch(info.key.rpartition("/")[2])
        if found is not None:
            yield DigestFileName(info.key, int(found["shard"]), found["sha256"], info.size_bytes)


def copy_digests(objects: ObjectStore, earlier: Job, job: Job, first_shard: int) -> None:
    """Those of a part, whose rows lie in shards of the same numbers. Raises StorageError."""
    for file in digest_files(objects, earlier.tenant_id, earlier.id, _part(first_shard)):
        data = read_verified(objects, file.key, file.sha256, file.size_bytes, size_bytes=file.size_bytes)
        objects.put(folder(job.tenant_id, job.id) + file.key.rpartition("/")[2], data)


def _part(first_shard: int) -> str:
    return f"{first_shard:06d}-"


class DigestTable:
    """Entries of a digest file, sorted, wherever they lie."""

    def __init__(
        self,
        first: NDArray[np.uint64],
        second: NDArray[np.uint64],
        shards: NDArray[np.uint32],
        rows: NDArray[np.uint32],
    ) -> None:
        """The halves of the digests, and where the result of each is: [entries] each."""
        self._first = first
        self._second = second
        self._shards = shards
        self._rows = rows

    @classmethod
    def of_file(cls, data: memoryview) -> "DigestTable":
        """Of a file's bytes. Raises CorruptDigests."""
        columns = Columns.of_file(bytes(data[:HEADER_BYTES]), len(data))

        def column(start: int, end: int, dtype: str) -> NDArray[Any]:
            return np.frombuffer(data[start:end], dtype)

        return columns.table(column)

    def find(self, digests: Halves) -> dict[int, tuple[int, int]]:
        """Shard and row of each digest that is there, by its position."""
        first, second = digests
        starts = np.searchsorted(self._first, first, "left")
        ends = np.searchsorted(self._first, first, "right")
        found: dict[int, tuple[int, int]] = {}
        for position in np.flatnonzero(ends > starts).tolist():
            for at in range(int(starts[position]), int(ends[position])):
                if self._second[at] == second[position]:
                    found[position] = (int(self._shards[at]), int(self._rows[at]))
                    break
        return found


@dataclass(frozen=True)
class Columns:
    """Where the columns of a digest file lie in it."""

    entries: int

    @classmethod
    def of_file(cls, header: bytes, size_bytes: int) -> "Columns":
        """By its first `HEADER_BYTES`. Raises CorruptDigests."""
        if len(header) < HEADER_BYTES:
            raise CorruptDigests("A digest file is too short.")
        magic, entries = _HEADER.unpack(header)
        if magic != MAGIC or size_bytes != HEADER_BYTES + entries * ENTRY_BYTES:
            raise CorruptDigests("A digest file is damaged, or is none.")
        return cls(entries)

    def first_halves(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of those of the entries [start, end)."""
        return HEADER_BYTES + 8 * start, HEADER_BYTES + 8 * end

    def table(
        self,
        read: Callable[[int, int, str], NDArray[Any]],
        start: int = 0,
        end: int | None = None,
    ) -> DigestTable:
        """Of the entries [start, end), or all. `read` gives the bytes between two places, of a type."""
        end = self.entries if end is None else end
        columns, at = [], HEADER_BYTES
        for dtype, width in _COLUMNS:
            columns.append(read(at + width * start, at + width * end, dtype))
            at += width * self.entries
        first, second, shards, rows = columns
        return DigestTable(first, second, shards, rows)
