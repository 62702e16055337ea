"""A part of each digest of a file: where a digest may be in it, and by ranged reads whether it is."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightshift.bulk.results.digest_files import HEADER_BYTES, Columns, CorruptDigests, DigestFileName, Halves
from nightshift.objectstore import ObjectStore

PREFIX_BYTES: Final = 4
READ_AT_ONCE: Final = 16
RANGE_ENTRIES_MAX: Final = (
    4096  # with the same prefix, read at once; equal digests may be many, and one will do
)


@dataclass(frozen=True)
class Candidate:
    position: int  # of a digest among those asked for
    start: int  # of the entries with its prefix …
    end: int


class DigestPrefixes:
    """Of one file. They are not compared with its sha256: a damaged one costs running rows again."""

    def __init__(
        self, objects: ObjectStore, file: DigestFileName, hold: Callable[[bytes], memoryview]
    ) -> None:
        """Reads a third of the file. `hold` keeps the prefixes. Raises StorageError and OSError."""
        self._objects = objects
        self._key = file.key
        self._columns = Columns.of_file(self._read(0, HEADER_BYTES), file.size_bytes)
        first = np.frombuffer(self._read(*self._columns.first_halves(0, self._columns.entries)), "<u8")
        self._prefixes = np.frombuffer(hold((first >> 32).astype("<u4").tobytes()), "<u4")

    def candidates(self, digests: Halves) -> list[Candidate]:
        """All that are in the file, and where that has a million entries, of a million others about 230."""
        asked = (digests[0] >> 32).astype(np.uint32)
        starts = np.searchsorted(self._prefixes, asked, "left")
        ends = np.searchsorted(self._prefixes, asked, "right")
        return [
            Candidate(position, int(starts[position]), int(ends[position]))
            for position in np.flatnonzero(ends > starts).tolist()
        ]

    def read(self, candidates: list[Candidate], digests: Halves) -> dict[int, tuple[int, int]]:
        """Shard and row of each that is in the file, by its position. Raises StorageError."""
        if not candidates:
            return {}
        with ThreadPoolExecutor(min(len(candidates), READ_AT_ONCE)) as threads:
            places = threads.map(lambda each: self._place_of(each, digests), candidates)
            found = zip(candidates, places, strict=True)
            return {each.position: place for each, place in found if place is not None}

    def _place_of(self, candidate: Candidate, digests: Halves) -> tuple[int, int] | None:
        one = slice(candidate.position, candidate.position + 1)
        first, second = digests[0][one], digests[1][one]
        entries = self._entries_with(candidate, first[0])
        if entries is None:
            return None
        return self._columns.table(self._column, *entries).find((first, second)).get(0)

    def _entries_with(self, candidate: Candidate, first: np.uint64) -> tuple[int, int] | None:
        """Those of the candidate's with this first half: usually none, or one."""
        end = min(candidate.end, candidate.start + RANGE_ENTRIES_MAX)
        halves = self._column(*self._columns.first_halves(candidate.start, end), "<u8")
        start = candidate.start + int(np.searchsorted(halves, first, "left"))
        end = candidate.start + int(np.searchsorted(halves, first, "right"))
        return (start, end) if end > start else None

    def _column(self, start: int, end: int, dtype: str) -> NDArray[Any]:
        return np.frombuffer(self._read(start, end), dtype)

    def _read(self, start: int, end: int) -> bytes:
        data = b"".join(self._objects.stream(self._key, start, end))
        if len(data) != end - start:
            raise CorruptDigests("A digest file is too short.")
        return data
