"""A shard's results in input order, some at a time.

Segments hold results in the order in which rows finished; of two results of a row, the first committed
counts. Small shards are held in memory, larger ones in a temporary file that is mapped: some 12 bytes a row
are held of these, and what some consecutive rows take.
"""

import mmap
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from tempfile import TemporaryFile
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.results.segments import SEGMENT_BYTES_MAX, decode_table, head_of, stream_of, table_of
from nightshift.jobs import Segment
from nightshift.objectstore import ObjectStore, copy_verified, read_verified

MEMORY_BYTES_MAX: Final = 1024 * 1024  # segments in memory; those of larger shards go to a file
WINDOW_BYTES: Final = 1024 * 1024  # results taken at a time; one row may have more
WINDOW_ROWS: Final = 65_536
ROW_BYTES: Final = 64  # a row without its texts and vectors

ALIGNED_BYTES: Final = 64  # as Arrow's buffers are
READ_AT_ONCE: Final = 8  # segments: most of a request is waiting

SEGMENT: Final = "segment"  # the number of a row's segment, in the order of commits


@dataclass(frozen=True)
class Window:
    """Consecutive results: a segment's columns, and `segment`, which gives each row's head."""

    table: pa.Table
    heads: Sequence[ShardHead]

    @property
    def rows(self) -> list[int]:
        rows: list[int] = self.table.column("row").to_pylist()
        return rows

    def slice(self, start: int, end: int) -> "Window":
        return Window(self.table.slice(start, end - start), self.heads)

    def results(self) -> list[RowResult]:
        numbers = self.table.column(SEGMENT).to_pylist()
        return decode_table(self.table, [self.heads[number] for number in numbers])


class ShardResults:
    """A context. Raises what reading a segment raises when it is opened."""

    def __init__(
        self,
        objects: ObjectStore,
        segments: Sequence[Segment],
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        """Segments of up to `memory_bytes_max` are held in memory. Raises OSError."""
        self._segments = segments
        self._streams = SegmentStreams(objects, segments, memory_bytes_max)
        self._heads: list[ShardHead] = []
        self._columns = pa.schema([])  # all that any segment has
        self._starts: NDArray[np.int64] = np.zeros(
            0, np.int64
        )  # each segment's first place among all results
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)  # where results lie, by row
        self._rows: NDArray[np.int32] = np.zeros(0, np.int32)  # ascending
        self._sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # bytes of the same rows

    def __enter__(self) -> "ShardResults":
        try:
            self._open()
        except BaseException:
            self._streams.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._streams.close()

    @property
    def num_rows(self) -> int:
        """Rows with a result."""
        return len(self._rows)

    @property
    def last_row(self) -> int:
        """-1: there is none."""
        return int(self._rows[-1]) if len(self._rows) else -1

    def windows(self) -> Iterator[Window]:
        """All results, by row."""
        start = 0
        while start < len(self._rows):
            sums = np.cumsum(self._sizes[start : start + WINDOW_ROWS])
            count = max(1, int(np.searchsorted(sums, WINDOW_BYTES, "right")))
            yield self._window(self._order[start : start + count])
            start += count

    def of_rows(self, rows: Sequence[int]) -> list[RowResult]:
        """The results of those of these rows that have one."""
        if not len(self._rows):
            return []
        places = np.searchsorted(self._rows, rows).clip(max=len(self._rows) - 1)
        places = places[self._rows[places] == rows]
        return self._window(self._order[places]).results() if len(places) else []

    def _open(self) -> None:
        """Makes the index of all rows, one segment at a time, while that is in memory."""
        rows: list[NDArray[np.int32]] = [self._rows]
        sizes: list[NDArray[np.int64]] = [self._sizes]
        for _ in self._segments:
            table = self._streams.read_next()
            self._heads.append(head_of(table.schema))
            self._columns = pa.unify_schemas([self._columns, table.schema.remove_metadata()])
            rows.append(np.array(table.column("row")))
            sizes.append(_sizes(table))
            self._streams.release()
        self._starts = np.cumsum([0, *map(len, rows[1:])])
        all_rows = np.concatenate(rows)
        self._order = _order(all_rows)
        self._rows, self._sizes = all_rows[self._order], np.concatenate(sizes)[self._order]

    def _window(self, places: NDArray[np.int64]) -> Window:
        """The results at these places. Only the segments that they lie in are looked at: taking rows of a
        table of many segments would copy all of them.
        """
        segments = np.searchsorted(self._starts, places, "right") - 1
        taken: list[pa.Table] = []
        order: list[NDArray[np.int64]] = []  # where they belong
        for number in np.unique(segments).tolist():
            indexes = np.flatnonzero(segments == number)
            rows = pa.array(places[indexes] - self._starts[number])
            table = self._streams.table(number).replace_schema_metadata(None).take(rows)
            taken.append(table.append_column(SEGMENT, pa.array(np.full(len(indexes), number, np.int32))))
            order.append(indexes)
        self._streams.release()
        if any(table.num_columns <= len(self._columns) for table in taken):
            taken.insert(0, self._columns.empty_table())
        table = taken[0] if len(taken) == 1 else pa.concat_tables(taken, promote_options="default")
        back = np.argsort(np.concatenate(order))
        is_ordered = bool(np.all(back[1:] > back[:-1]))
        return Window(table if is_ordered else table.take(pa.array(back)), self._heads)


def _order(rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """The places of the rows, by row; of one row's results, the first."""
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return order[is_first]


def _sizes(table: pa.Table) -> NDArray[np.int64]:
    """Returns the size of each row in bytes."""
    sizes = np.full(table.num_rows, ROW_BYTES, np.int64)
    for column in table.columns:
        if pa.types.is_large_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes


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
        """Closes the file. Its mapping stays until nothing refers to it."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._ahead.clear()
        if self._file is not None:
            self._file.close()
        self._streams.clear()
        self._map = None

    def read_next(self) -> pa.Table:
        """The next segment. Raises ObjectDamaged, CorruptSegment and StorageError, and OSError where the
        file has no room.
        """
        number = len(self._streams)
        self._streams.append(stream_of(self._next_data(number)))
        return table_of(self._streams[number])

    def table(self, number: int) -> pa.Table:
        """A segment that was read, without a copy of its columns."""
        return table_of(self._streams[number])

    def release(self) -> None:
        """Lets the kernel drop pages of the file that were read."""
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
