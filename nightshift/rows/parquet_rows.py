"""Rows of Parquet row groups, and the row groups of a footer."""

import base64
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.jobs import JsonObject
from nightshift.objectstore import MIB, ObjectReader
from nightshift.rows.parquet_sizes import has_dictionaries, row_bytes, rows_within
from nightshift.rows.records import BadRow, Row, RowGroup, UnreadableInput

BATCH_ROWS: Final = 64  # decoded at a time; documents may be large
BATCH_DECODED_BYTES_MAX: Final = 64 * MIB  # where values may be one large one, many times
BATCH_BYTES_MAX: Final = 16 * MIB  # a larger batch becomes Python objects row by row
BUFFER_BYTES: Final = 1 * MIB  # read ahead, per column


def parquet_rows(
    store: ObjectReader,
    key: str,
    size_bytes: int,
    first_group: int,
    end_group: int | None,
    etag: str | None = None,
    *,
    row_bytes_max: int,
) -> Iterator[Row | BadRow]:
    """The rows of the row groups [first_group, end_group), or to the last one for None.

    Values become JSON: times ISO 8601, decimals strings, bytes base64, NaN null; any other makes a `BadRow`,
    as do rows of more than `row_bytes_max` decoded bytes. Raises `UnreadableInput`, and with an `etag`
    `ObjectChanged` for another object.
    """
    index = 0
    with _opened(store, key, size_bytes, etag) as file:
        groups = range(first_group, file.num_row_groups if end_group is None else end_group)
        if not groups:
            return
        for group in groups:
            batch_rows = _batch_rows_of(file, group, store, key, etag)
            for batch in file.iter_batches(batch_rows, row_groups=[group], use_threads=False):
                yield from _batch_rows(batch, index, row_bytes_max)
                index += batch.num_rows


def parquet_row_groups(
    store: ObjectReader, key: str, size_bytes: int, etag: str | None = None
) -> tuple[RowGroup, ...]:
    """Read from the footer. Raises `UnreadableInput`; with an `etag`, `ObjectChanged`."""
    with _opened(store, key, size_bytes, etag) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        return tuple(RowGroup(group.num_rows, group.total_byte_size) for group in groups)


def _batch_rows_of(file: pq.ParquetFile, group: int, store: ObjectReader, key: str, etag: str | None) -> int:
    """How many rows of a row group to decode at a time. Raises `UnreadableInput` for one too large."""

    def read(start: int, end: int) -> bytes:
        return b"".join(store.stream(key, start, end, if_match=etag))

    metadata = file.metadata.row_group(group)
    return min(BATCH_ROWS, rows_within(BATCH_DECODED_BYTES_MAX, metadata, file.schema, read))


@contextmanager
def _opened(store: ObjectReader, key: str, size_bytes: int, etag: str | None) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(_ObjectFile(store, key, size_bytes, etag), buffer_size=BUFFER_BYTES) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: of a column's name
        raise UnreadableInput(f"{key} cannot be read as Parquet: {error}.") from error


class _ObjectFile(io.RawIOBase):
    """An object as a seekable file; every read is a range read."""

    def __init__(self, store: ObjectReader, key: str, size_bytes: int, etag: str | None) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._etag = etag
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._size_bytes if size is None or size < 0 else min(self._position + size, self._size_bytes)
        if end <= self._position:
            return b""
        data = b"".join(self._store.stream(self._key, self._position, end, if_match=self._etag))
        self._position += len(data)
        return data


def _batch_rows(batch: pa.RecordBatch, first_index: int, row_bytes_max: int) -> Iterator[Row | BadRow]:
    batch = _in_microseconds(batch)
    is_small = batch.nbytes <= min(row_bytes_max, BATCH_BYTES_MAX)
    if is_small and not any(map(has_dictionaries, batch.schema.types)):
        try:
            records: list[JsonObject] = batch.to_pylist()
        except (ValueError, OverflowError, pa.ArrowException):
            pass  # one value fails the whole column
        else:
            for index, record in enumerate(records, start=first_index):
                yield Row(index, {name: _jsonable(value) for name, value in record.items()})
            return
    for position, size in enumerate(row_bytes(batch).tolist()):
        index = first_index + position
        if size > row_bytes_max:
            yield BadRow(index, "line_too_long", f"the row has {size} bytes, more than this service accepts")
        else:
            yield _single_row(batch.slice(position, 1), index)


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python's times have microseconds; pandas writes nanoseconds."""
    columns = [
        column.cast(pa.timestamp("us", column.type.tz), safe=False)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _single_row(batch: pa.RecordBatch, index: int) -> Row | BadRow:
    record: JsonObject = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            record[name] = _jsonable(column[0].as_py())
        except (ValueError, OverflowError, pa.ArrowException) as error:
            return BadRow(index, "invalid_value", f"column {name!r} cannot be read: {error}")
    return Row(index, record)


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return _jsonable_list(value)
    if isinstance(value, dict):
        return {str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    return str(value)  # UUIDs and other extension types


def _jsonable_list(value: list[Any]) -> Any:
    """A list, or an object for Arrow's map pairs."""
    if value and all(isinstance(item, tuple) for item in value):
        return {str(name): _jsonable(item) for name, item in value}
    return [_jsonable(item) for item in value]
