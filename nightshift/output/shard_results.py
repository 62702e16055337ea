"""A shard's results in input order, some at a time.

Segments hold results in the order in which rows finished; of two results of a row, the first committed
counts. Small shards are held in memory, larger ones in a temporary file that is mapped, so that memory grows
with neither.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nightshift.jobs import Segment
from nightshift.objectstore import ObjectStore
from nightshift.output.row_results import RowResult, ShardHead
from nightshift.output.segments import decode_table, head_of, read_stream

SPOOL_BYTES: Final = 16 * 1024 * 1024  # of a shard's segments in memory; larger shards go to a file
WINDOW_BYTES: Final = 8 * 1024 * 1024  # of results taken at a time; one row may have more
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

    def __init__(self, objects: ObjectStore, segments: Sequence[Segment], head: ShardHead) -> None:
        """`head`: for segments of the release before, which lack it."""
        self._objects = objects
        self._head = head
        self._segments = segments
        self._held = ExitStack()
        self._heads: list[ShardHead] = []
        self._table: pa.Table | None = None
        self._order: pa.Array = pa.array([], pa.int64())
        self._rows: NDArray[np.int32] | None = None  # ascending

    def __enter__(self) -> "ShardResults":
        try:
            self._open()
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._table = None  # it lies in the mapped file
        self._held.close()

    @property
    def num_rows(self) -> int:
        """Rows with a result."""
        return len(self._order)

    @property
    def last_row(self) -> int:
        """-1: there is none."""
        if self._table is None or not len(self._order):
            return -1
        return int(self._table.column("row")[self._order[-1].as_py()].as_py())

    def windows(self) -> Iterator[Window]:
        """All results, by row."""
        if self._table is None:
            return
        sizes = _sizes(self._table).take(self._order)
        start = 0
        while start < len(self._order):
            sums = pc.cumulative_sum(sizes.slice(start, WINDOW_ROWS))
            count = max(1, pc.sum(pc.less_equal(sums, WINDOW_BYTES)).as_py())
            yield Window(self._table.take(self._order.slice(start, count)), self._heads)
            start += count

    def of_rows(self, rows: Sequence[int]) -> list[RowResult]:
        """The results of those of these rows that have one."""
        if self._table is None:
            return []
        if self._rows is None:
            self._rows = self._table.column("row").to_numpy()[self._order.to_numpy()]
        places = np.searchsorted(self._rows, rows).clip(max=len(self._rows) - 1)
        places = places[self._rows[places] == rows]
        return Window(self._table.take(self._order.take(pa.array(places))), self._heads).results()

    def _open(self) -> None:
        if not self._segments:
            return
        tables = []
        for number, (table, head) in enumerate(self._tables()):
            numbers = pa.array([number], pa.int32()).take(pa.array([0] * table.num_rows, pa.int32()))
            tables.append(table.append_column(SEGMENT, numbers))
            self._heads.append(head)
        self._table = pa.concat_tables(tables, promote_options="default")
        self._order = _order(self._table)

    def _tables(self) -> Iterator[tuple[pa.Table, ShardHead]]:
        total = sum(segment.size_bytes for segment in self._segments)
        spool = NamedTemporaryFile() if total > SPOOL_BYTES else None  # noqa: SIM115 closed with the stack
        if spool is not None:
            self._held.enter_context(spool)
        places = []
        for segment in self._segments:
            stream = read_stream(self._objects, segment, self._head)
            if spool is None:
                yield _opened(pa.py_buffer(stream))
            else:
                places.append((spool.tell(), len(stream)))
                spool.write(stream)
                spool.write(bytes(-len(stream) % 64))  # Arrow's buffers are aligned
        if spool is not None:
            spool.flush()
            mapped = self._held.enter_context(pa.memory_map(spool.name)).read_buffer()
            for offset, length in places:
                yield _opened(mapped.slice(offset, length))


def _opened(stream: pa.Buffer) -> tuple[pa.Table, ShardHead]:
    table = pa.ipc.open_stream(stream).read_all()
    return table.replace_schema_metadata(None), head_of(table.schema)


def _order(table: pa.Table) -> pa.Array:
    """Where the rows lie, by row; of one row's results, the first."""
    keys = [("row", "ascending"), (SEGMENT, "ascending")]
    order = pc.sort_indices(table, sort_keys=keys)
    rows = table.column("row").combine_chunks().take(order)
    if len(rows) < 2:
        return order
    is_first = pc.not_equal(rows.slice(1), rows.slice(0, len(rows) - 1))
    return order.filter(pa.concat_arrays([pa.array([True]), is_first]))


def _sizes(table: pa.Table) -> pa.Array:
    """Of each row, in bytes."""
    sizes = pa.array([ROW_BYTES], pa.int64()).take(pa.array([0] * table.num_rows, pa.int32()))
    for name in table.column_names:
        if pa.types.is_large_binary(table.column(name).type):
            lengths = pc.fill_null(pc.binary_length(table.column(name)), 0)
            sizes = pc.add(sizes, lengths)
    return sizes.combine_chunks() if isinstance(sizes, pa.ChunkedArray) else sizes
