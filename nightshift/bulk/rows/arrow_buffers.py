"""The buffers of an Arrow batch: ranges of the object, or unpacked in memory within limits."""

from typing import Final

import pyarrow as pa

from nightshift.bulk.rows.arrow_messages import BatchHeader, Fetch, RangeReader
from nightshift.bulk.rows.records import UnreadableInput
from nightshift.objectstore import MIB

AHEAD_BYTES: Final = 1 * MIB  # per buffer, of a large batch …
AHEAD_BYTES_MAX: Final = 32 * MIB  # … and of all its buffers together
UNPACKED_BYTES: Final = 64 * MIB  # of a batch …
UNPACKED_RATIO_MAX: Final = 1000  # … beyond it, at most so many times its size in the object …
UNPACKED_BYTES_MAX: Final = 256 * MIB  # … but never beyond
LENGTH_BYTES: Final = 8  # before a packed buffer
NOT_PACKED: Final = -1  # as its length


class Buffers:
    """Those of a batch that are read. Raises `UnreadableInput` for those that are too large unpacked."""

    def __init__(
        self, header: BatchHeader, numbers: list[int], fetch: Fetch, small: RangeReader | None
    ) -> None:
        """`numbers`: which. `small`: a reader that has the batch's body already."""
        self._codec = header.codec
        self._fetch = fetch
        self._small = small
        self._ahead_bytes = min(AHEAD_BYTES, AHEAD_BYTES_MAX // max(1, len(numbers)))
        self._places = {number: header.buffers[number] for number in numbers}
        self._readers: dict[int, RangeReader] = {}
        self._unpacked_bytes: dict[int, int] = {}
        self._unpacked: dict[int, bytes] = {}
        if self._codec is not None:
            self._look_at_lengths()

    def size(self, number: int) -> int:
        """Of a buffer's bytes, unpacked."""
        start, end = self._places[number]
        return self._unpacked_bytes.get(number, end - start)

    def read(self, number: int, start: int, end: int) -> bytes:
        """A part of a buffer, unpacked."""
        if number in self._unpacked_bytes:
            if number not in self._unpacked:
                self._unpacked[number] = self._unpack(number)
            return self._unpacked[number][start:end]
        first, last = self._places[number]
        if number not in self._readers:
            self._readers[number] = self._small or RangeReader(self._fetch, last, self._ahead_bytes)
        return self._readers[number].read(first + start, first + end)

    def _look_at_lengths(self) -> None:
        """Unpacked, as their first bytes say: they are not unpacked if they come to too much."""
        packed_bytes = 0
        for number, (start, end) in self._places.items():
            if start == end:
                continue
            if end - start < LENGTH_BYTES:
                raise UnreadableInput("A packed buffer has no length.")
            said = int.from_bytes(self._stored(start, start + LENGTH_BYTES), "little", signed=True)
            self._places[number] = (start + LENGTH_BYTES, end)
            if said != NOT_PACKED:
                self._unpacked_bytes[number] = said
                packed_bytes += end - start
        total = sum(self._unpacked_bytes.values())
        allowed = min(UNPACKED_BYTES_MAX, max(UNPACKED_BYTES, UNPACKED_RATIO_MAX * packed_bytes))
        if min(self._unpacked_bytes.values(), default=0) < 0 or max(total, packed_bytes) > allowed:
            raise UnreadableInput(
                f"A batch takes {total} bytes unpacked, more than {allowed}: write batches of fewer rows."
            )

    def _unpack(self, number: int) -> bytes:
        size_bytes = self._unpacked_bytes[number]
        packed = pa.BufferReader(self._stored(*self._places[number]))
        with pa.CompressedInputStream(packed, self._codec) as stream:
            data: bytes = stream.read(size_bytes)
        if len(data) < size_bytes:
            raise UnreadableInput("A packed buffer has fewer bytes than it says.")
        return data

    def _stored(self, start: int, end: int) -> bytes:
        return self._fetch(start, end) if self._small is None else self._small.read(start, end)
