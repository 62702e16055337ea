"""Where a job's results are, looked up by digest in its digest files. What is held of them has a limit.

    held whole        24 bytes a row: all files where they fit, else those that many rows of a batch are in
    held as prefixes   4 bytes a row: a row that may be in such a file is looked for there by ranged reads
    not held           beyond the limit: looked at only by rows of the same part

Rows that are not found for the limit are run again.
"""

import logging
from collections.abc import Sequence
from typing import Final

from nightshift.bulk.results.digest_files import (
    ENTRIES_MAX,
    ENTRY_BYTES,
    CorruptDigests,
    DigestFileName,
    DigestTable,
    Halves,
    halves_of,
)
from nightshift.bulk.results.digest_prefixes import DigestPrefixes
from nightshift.bulk.results.digest_space import DigestSpace
from nightshift.errors import ObjectNotFound
from nightshift.objectstore import MIB, ObjectDamaged, ObjectStore, read_verified

log = logging.getLogger(__name__)

DIGEST_BYTES_MAX: Final = 512 * MIB  # of one job: 22 million rows whole, 110 million beside two whole files
FILE_BYTES_MAX: Final = 4 * ENTRIES_MAX * ENTRY_BYTES
LOADED_FROM: Final = 8  # rows of a batch that may be in a file: it is read as a whole …
LOADED_MAX: Final = 2  # … but no more files than these for a batch: others may be there for the next one

Places = dict[int, tuple[int, int]]
"""Shard and row of each digest that is there, by its position."""

_LOST: Final = (ObjectNotFound, ObjectDamaged, CorruptDigests, OSError)


class DigestIndex:
    """Not thread-safe."""

    def __init__(self, objects: ObjectStore, files: Sequence[DigestFileName], bytes_max: int) -> None:
        """`bytes_max`: held on disk; at least one file is. Reads nothing yet. Raises OSError."""
        self._objects = objects
        self._files = files
        self._space = DigestSpace([file.size_bytes for file in files], bytes_max)
        self._prefixes: dict[int, DigestPrefixes] = {}
        self._lost: set[int] = set()
        self._loads_left = 0  # for this batch

    @property
    def held_bytes_max(self) -> int:
        """On disk."""
        return self._space.size_bytes

    def close(self) -> None:
        """What is mapped stays until nothing refers to it."""
        self._space.close()

    def find(self, digests: Sequence[bytes], near_shard: int) -> dict[bytes, tuple[int, int]]:
        """Shard and row of those that are there, and not beyond the limit. Raises StorageError."""
        found: dict[bytes, tuple[int, int]] = {}
        wanted = list(dict.fromkeys(digests))
        halves = halves_of(b"".join(wanted))
        own_part = self._part_of(near_shard)
        self._loads_left = LOADED_MAX
        for number in self._in_order(near_shard, own_part):
            if not wanted:
                break
            places = self._found_in(number, halves, is_own=self._files[number].first_shard == own_part)
            if places:
                found |= {wanted[position]: place for position, place in places.items()}
                left = [position for position in range(len(wanted)) if position not in places]
                wanted = [wanted[position] for position in left]
                halves = (halves[0][left], halves[1][left])
        return found

    def _part_of(self, shard_no: int) -> int:
        """The first shard of the part that it is in, where the job was cut alike."""
        begun = [file.first_shard for file in self._files if file.first_shard <= shard_no]
        return max(begun, default=0)

    def _in_order(self, near_shard: int, own_part: int) -> list[int]:
        """Files of its part come first, then those whose first shards are near."""

        def distance(number: int) -> tuple[bool, int]:
            first_shard = self._files[number].first_shard
            return first_shard != own_part, abs(first_shard - near_shard)

        return sorted(range(len(self._files)), key=distance)

    def _found_in(self, number: int, digests: Halves, *, is_own: bool) -> Places:
        """In one file. None of one that is lost, or beyond the limit. Raises StorageError."""
        if number in self._lost:
            return {}
        try:
            if (table := self._whole(number)) is not None:
                return table.find(digests)
            if self._space.holds_all or (is_own and not self._space.has_prefixes(number)):
                return self._loaded(number).find(digests)
            if self._space.has_prefixes(number):
                return self._found_by_prefix(number, digests)
        except _LOST as error:
            log.warning("digests are gone: %s", error, extra={"action": "reuse_lost"})
            self._lost.add(number)
        return {}

    def _found_by_prefix(self, number: int, digests: Halves) -> Places:
        prefixes = self._prefixes.get(number)
        if prefixes is None:
            file = self._files[number]
            _check_size(file)
            prefixes = DigestPrefixes(
                self._objects, file, lambda data: self._space.put_prefixes(number, data)
            )
            self._prefixes[number] = prefixes
        candidates = prefixes.candidates(digests)
        if len(candidates) >= LOADED_FROM and self._loads_left > 0:
            self._loads_left -= 1
            return self._loaded(number).find(digests)
        return prefixes.read(candidates, digests)

    def _whole(self, number: int) -> DigestTable | None:
        data = self._space.whole(number)
        return None if data is None else DigestTable.of_file(data)

    def _loaded(self, number: int) -> DigestTable:
        file = self._files[number]
        _check_size(file)
        data = read_verified(self._objects, file.key, file.sha256, FILE_BYTES_MAX)
        DigestTable.of_file(memoryview(data))  # damaged ones are not held
        return DigestTable.of_file(self._space.put_whole(number, data))


def _check_size(file: DigestFileName) -> None:
    if file.size_bytes > FILE_BYTES_MAX:
        raise CorruptDigests(f"A digest file has {file.size_bytes} bytes, and is none.")
