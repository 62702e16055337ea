"""The Arrow streams of one shard's segments: few bytes in memory, more in a temporary file that is mapped."""

import mmap
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from tempfile import TemporaryFile
from typing import IO, Final

import pyarrow as pa

from nightshift.bulk.results.row_results import ShardHead
from nightshift.bulk.results.segments import SEGMENT_BYTES_MAX, stream_of
from nightshift.jobs import Segment
from nightshift.objectstore import ObjectStore, copy_verified, read_verified

ALIGNED_BYTES: Final = 64  # as Arrow's buffers are
READ_AT_ONCE: Final = 8  # segments: most of a request is waiting


class SegmentStreams:
    """Segments are given one after another, while the next few are being read; then they are looked at in any
    order. `close` them.
    """

    def __init__(self, objects: ObjectStore, segments: Sequence[Segment], memory_bytes_max: int) -> None:
        """`memory_bytes_max`: segments of more bytes go to the file. Raises OSError."""
        self._objects = objects
        self._segments = segments
        self._streams: list[memoryview] = []
        self._ahead: deque[Future[bytes | memoryview]] = deque()
        self._threads = ThreadPoolExecutor(READ_AT_ONCE, "segments") if len(segments) > 1 else None
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        sizes = [_aligned(segment.size_bytes) for segment in segments]
        self._starts = [0, *accumulate(sizes)]
        if self._starts[-1] > memory_bytes_max:
            self._file = TemporaryFile()  # noqa: SIM115 closed with the streams
            self._file.truncate(self._starts[-1])
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """What is mapped stays until nothing refers to it."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._ahead.clear()
        if self._file is not None:
            self._file.close()
        self._streams.clear()
        self._map = None

    def read_next(self, head: ShardHead) -> pa.Table:
        """The next segment; `head`: for one of the release before.

        Raises ObjectDamaged, CorruptSegment and StorageError, and OSError where the file has no room.
        """
        number = len(self._streams)
        self._streams.append(stream_of(self._next_data(number), self._segments[number].key, head))
        return _table(self._streams[number])

    def table(self, number: int) -> pa.Table:
        """Of a segment that was read, without a copy of its columns."""
        return _table(self._streams[number])

    def release(self) -> None:
        """What was looked at of the file need not stay in memory."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def _next_data(self, number: int) -> bytes | memoryview:
        if self._threads is None:
            return self._data(number)
        begun = number + len(self._ahead)
        for later in range(begun, min(number + READ_AT_ONCE, len(self._segments))):
            self._ahead.append(self._threads.submit(self._data, later))
        data = self._ahead.popleft().result()
        if number + 1 == len(self._segments):
            self._threads.shutdown()
            self._threads = None
        return data

    def _data(self, number: int) -> bytes | memoryview:
        """A segment's bytes, verified, which lie at its place if there is a file. They are not written
        through the mapping: a full disk would end the process.
        """
        segment, start = self._segments[number], self._starts[number]
        if self._file is None or self._map is None:
            return read_verified(
                self._objects, segment.key, segment.sha256, SEGMENT_BYTES_MAX, size_bytes=segment.size_bytes
            )
        copy_verified(self._objects, segment.key, segment.sha256, segment.size_bytes, self._file, start)
        return memoryview(self._map)[start : start + segment.size_bytes]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


def _table(stream: memoryview) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
