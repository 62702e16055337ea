"""A shard's results in input order, some at a time.

Segments hold results in the order in which rows finished; of two results of a row, the first committed
counts. Small shards are held in memory, larger ones in a temporary file that is mapped: some 12 bytes a row
are held of these, and what some consecutive rows take.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.results.segment_streams import SegmentStreams
from nightshift.bulk.results.segments import decode_table, head_of
from nightshift.jobs import Segment
from nightshift.objectstore import ObjectStore

MEMORY_BYTES_MAX: Final = 1024 * 1024  # of segments in memory; those of larger shards go to a file
WINDOW_BYTES: Final = 1024 * 1024  # of results taken at a time; one row may have more
WINDOW_ROWS: Final = 65_536
ROW_BYTES: Final = 64  # of a row without its texts and vectors

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
        head: ShardHead,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        """`head`: for segments of the release before, which lack it. `memory_bytes_max`: of segments that
        are held in memory. Raises OSError.
        """
        self._head = head
        self._segments = segments
        self._streams = SegmentStreams(objects, segments, memory_bytes_max)
        self._heads: list[ShardHead] = []
        self._columns = pa.schema([])  # all that any segment has
        self._starts: NDArray[np.int64] = np.zeros(0, np.int64)  # of each segment, among all results
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)  # where results lie, by row
        self._rows: NDArray[np.int32] = np.zeros(0, np.int32)  # ascending
        self._sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # of the same rows, in bytes

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
        """What is held of each row is made of each segment while that is in memory."""
        rows: list[NDArray[np.int32]] = [self._rows]
        sizes: list[NDArray[np.int64]] = [self._sizes]
        for _ in self._segments:
            table = self._streams.read_next(self._head)
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
            found = np.flatnonzero(segments == number)
            rows = pa.array(places[found] - self._starts[number])
            table = self._streams.table(number).replace_schema_metadata(None).take(rows)
            taken.append(table.append_column(SEGMENT, pa.array(np.full(len(found), number, np.int32))))
            order.append(found)
        self._streams.release()
        if any(table.num_columns <= len(self._columns) for table in taken):
            taken.insert(0, self._columns.empty_table())
        table = taken[0] if len(taken) == 1 else pa.concat_tables(taken, promote_options="default")
        back = np.argsort(np.concatenate(order))
        is_ordered = bool(np.all(back[1:] > back[:-1]))
        return Window(table if is_ordered else table.take(pa.array(back)), self._heads)


def _order(rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where the rows lie, by row; of one row's results, the first."""
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return order[is_first]


def _sizes(table: pa.Table) -> NDArray[np.int64]:
    """Of each row, in bytes."""
    sizes = np.full(table.num_rows, ROW_BYTES, np.int64)
    for column in table.columns:
        if pa.types.is_large_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes
