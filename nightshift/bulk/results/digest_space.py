"""A temporary file of limited size, that holds digest files and prefixes of digests."""

import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from tempfile import TemporaryFile
from typing import IO, Final

from nightshift.bulk.results.digest_files import ENTRY_BYTES, HEADER_BYTES
from nightshift.bulk.results.digest_prefixes import PREFIX_BYTES

WHOLE_MIN: Final = 2  # files that are held whole beside prefixes, where the limit allows one prefix at all


class DigestSpace:
    """prefixes of the files 0, 1, … as many as fit | slots of equal size, each for a file as a whole

    Where all files fit as a whole, there are no prefixes.
    """

    def __init__(self, sizes_bytes: Sequence[int], bytes_max: int) -> None:
        """`bytes_max` is kept, but that one slot is always there. Raises OSError."""
        self._slot_bytes = _aligned(max(sizes_bytes, default=0))
        self.holds_all = self._slot_bytes * len(sizes_bytes) <= bytes_max
        slots, self._prefix_ends = len(sizes_bytes), [0]
        if not self.holds_all:
            room = bytes_max - WHOLE_MIN * self._slot_bytes
            ends = accumulate(_aligned(_prefix_bytes(size)) for size in sizes_bytes)
            self._prefix_ends += [end for end in ends if end <= room]
            slots = max(1, (bytes_max - self._prefix_ends[-1]) // self._slot_bytes)
        self._free = list(range(min(slots, len(sizes_bytes))))
        self._slots: OrderedDict[int, tuple[int, int]] = OrderedDict()  # by file: slot and size
        self.size_bytes = self._prefix_ends[-1] + len(self._free) * self._slot_bytes
        self._file: IO[bytes] | None = None
        self._map: memoryview | None = None
        if self.size_bytes:
            self._file = TemporaryFile()  # noqa: SIM115 closed with the space
            self._file.truncate(self.size_bytes)
            self._map = memoryview(mmap.mmap(self._file.fileno(), self.size_bytes, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """What is mapped stays until nothing refers to it."""
        if self._file is not None:
            self._file.close()

    def has_prefixes(self, number: int) -> bool:
        """Whether there is room for those of this file."""
        return number + 1 < len(self._prefix_ends)

    def put_prefixes(self, number: int, data: bytes) -> memoryview:
        """Raises OSError."""
        return self._write(self._prefix_ends[number], data)

    def whole(self, number: int) -> memoryview | None:
        """A file that was put, unless another one has taken its place."""
        if number not in self._slots:
            return None
        self._slots.move_to_end(number)
        slot, size_bytes = self._slots[number]
        assert self._map is not None, "a file was put"
        start = self._start_of(slot)
        return self._map[start : start + size_bytes]

    def put_whole(self, number: int, data: bytes) -> memoryview:
        """In the place of the one used longest ago; what was given of that is not to be read any more. Raises
        OSError.
        """
        slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1][0]
        try:
            written = self._write(self._start_of(slot), data)
        except OSError:
            self._free.append(slot)
            raise
        self._slots[number] = (slot, len(data))
        return written

    def _start_of(self, slot: int) -> int:
        return self._prefix_ends[-1] + slot * self._slot_bytes

    def _write(self, start: int, data: bytes) -> memoryview:
        """Not through the mapping: a full disk would end the process."""
        assert self._file is not None, "there are files"
        assert self._map is not None, "there are files"
        view, done = memoryview(data), 0
        while done < len(data):
            done += os.pwrite(self._file.fileno(), view[done:], start + done)
        return self._map[start : start + len(data)]


def _prefix_bytes(size_bytes: int) -> int:
    return max(0, size_bytes - HEADER_BYTES) // ENTRY_BYTES * PREFIX_BYTES


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // 64) * 64
