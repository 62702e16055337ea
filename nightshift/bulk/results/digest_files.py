"""Digest files: where a job's results with a digest are, sorted by digest; one or more for each part.

    digests/{tenant}/{job}/{first shard}-{number}-{sha256}

    magic, number of entries (uint64)
    the first 8 bytes of each digest (uint64), its result's shard (uint32), its result's row (uint32)

Integers are little-endian. A file says only where to look: the reader of a result compares the whole digest.
"""

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nightshift.errors import StorageError
from nightshift.objectstore import ObjectStore

MAGIC: Final = b"NSDIGEST"
ENTRY_BYTES: Final = 16
ENTRIES_MAX: Final = 250_000  # in a file: its writer holds 16 bytes for each, and 12 more while it sorts them
PIECE_ENTRIES: Final = 16_384  # written at a time

_HEADER: Final = struct.Struct("<8sQ")
_COLUMNS: Final = (("<u8", 8), ("<u4", 4), ("<u4", 4))
_NAME: Final = re.compile(r"(?P<shard>[0-9]+)-[0-9]+-(?P<sha256>[0-9a-f]{64})")


class CorruptDigests(StorageError):
    """An object is not a whole digest file."""

    default_code = "corrupt_digests"


def folder(tenant_id: str, job_id: str) -> str:
    return f"digests/{tenant_id}/{job_id}/"


def keys_of(digests: Sequence[bytes]) -> NDArray[np.uint64]:
    """The first 8 bytes of each digest, by which files are sorted."""
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)[:, 0]


class DigestWriter:
    """Digests of one part's results, written to files as they become many."""

    def __init__(self, objects: ObjectStore, tenant_id: str, job_id: str, first_shard: int) -> None:
        """`first_shard` is the part's."""
        self._objects = objects
        self._prefix = f"{folder(tenant_id, job_id)}{first_shard:06d}-"
        self._held: _Entries | None = None
        self._files = 0

    def add(self, shard_no: int, digests: "pa.ChunkedArray", rows: "pa.ChunkedArray") -> None:
        """Adds results of the shard, some without a digest. Raises StorageError."""
        known = digests.is_valid()
        keys = keys_of(digests.filter(known).to_pylist())
        numbers, start = rows.filter(known).to_numpy(), 0
        while start < len(numbers):
            self._held = self._held or _Entries(ENTRIES_MAX)
            start += self._held.add(keys[start:], shard_no, numbers[start:])
            if self._held.is_full:
                self.end()

    def end(self) -> None:
        """Writes what is held. Raises StorageError."""
        if self._held is None:
            return
        held, self._held = self._held, None
        order = held.order()
        sha256 = hashlib.sha256()
        for piece in held.pieces(order):
            sha256.update(piece)
        self._objects.put(f"{self._prefix}{self._files}-{sha256.hexdigest()}", held.pieces(order))
        self._files += 1


class _Entries:
    """A file's entries, in columns with room for all of them: small pieces of a part would be very many."""

    def __init__(self, entries_max: int) -> None:
        self._columns = [np.empty(entries_max, dtype) for dtype, _ in _COLUMNS]
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._count == len(self._columns[0])

    def add(self, keys: NDArray[np.uint64], shard_no: int, rows: NDArray[Any]) -> int:
        """Adds as many as there is room for. Returns how many."""
        end = min(self._count + len(rows), len(self._columns[0]))
        count = end - self._count
        for column, values in zip(self._columns, (keys[:count], shard_no, rows[:count]), strict=True):
            column[self._count : end] = values
        self._count = end
        return count

    def order(self) -> NDArray[np.int64]:
        """The entries' positions, by digest."""
        return np.argsort(self._columns[0][: self._count], kind="stable")

    def pieces(self, order: NDArray[np.int64]) -> Iterator[bytes]:
        """The file's bytes."""
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


def digest_files(objects: ObjectStore, tenant_id: str, job_id: str) -> Iterator[DigestFileName]:
    """A job's digest files, by their parts. Raises StorageError."""
    for info in objects.list(folder(tenant_id, job_id)):
        name = _NAME.fullmatch(info.key.rpartition("/")[2])
        if name is not None:
            yield DigestFileName(info.key, int(name["shard"]), name["sha256"], info.size_bytes)


class DigestTable:
    """A digest file's entries, looked up where they lie."""

    def __init__(self, data: bytes | memoryview) -> None:
        """`data` is the whole file. Raises CorruptDigests."""
        if len(data) < _HEADER.size:
            raise CorruptDigests("A digest file is too short.")
        magic, entries = _HEADER.unpack(data[: _HEADER.size])
        if magic != MAGIC or len(data) != _HEADER.size + entries * ENTRY_BYTES:
            raise CorruptDigests("A digest file is damaged, or is none.")
        columns, start = [], _HEADER.size
        for dtype, width in _COLUMNS:
            columns.append(np.frombuffer(data, dtype, entries, start))
            start += width * entries
        self._keys, self._shards, self._rows = columns

    def find(self, keys: NDArray[np.uint64]) -> dict[int, tuple[int, int]]:
        """Shard and row of the results of these digests, by the digest's position in `keys`.

        A result may have another digest with the same first bytes.
        """
        if not len(self._keys):
            return {}
        entries = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        positions = np.flatnonzero(self._keys[entries] == keys).tolist()
        return {at: (int(self._shards[entries[at]]), int(self._rows[entries[at]])) for at in positions}
