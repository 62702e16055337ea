"""Rows of Parquet row groups, and the row groups of a footer."""

import base64
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from nightshift.jobs import JsonObject
from nightshift.objectstore import MIB, ObjectReader
from nightshift.rows.parquet_groups import ParquetObject
from nightshift.rows.parquet_sizes import batch_bytes, row_bytes
from nightshift.rows.parquet_types import microseconds
from nightshift.rows.records import BadRow, Row, RowGroup, UnreadableInput

BATCH_BYTES_MAX: Final = 16 * MIB  # a larger batch becomes Python objects row by row
GROUP_ROWS_MAX: Final = 2**31


def parquet_rows(
    store: ObjectReader,
    key: str,
    size_bytes: int,
    first_group: int,
    end_group: int | None,
    etag: str | None = None,
    *,
    columns: Collection[str] | None = None,
    row_bytes_max: int,
) -> Iterator[Row | BadRow]:
    """The rows of the row groups [first_group, end_group), or to the last one for None, with these columns.

    Values become JSON: times ISO 8601, decimals strings, bytes base64, NaN null; any other makes a `BadRow`,
    as do rows of more than `row_bytes_max` decoded bytes. Raises `UnreadableInput`, and with an `etag`
    `ObjectChanged` for another object.
    """
    index = 0
    with _opened(store, key, size_bytes, etag) as file:
        names = file.names_of(columns)
        for group in range(first_group, file.metadata.num_row_groups if end_group is None else end_group):
            for batch in file.batches(group, names):
                yield from _batch_rows(batch, index, row_bytes_max)
                index += batch.num_rows


def parquet_row_groups(
    store: ObjectReader, key: str, size_bytes: int, etag: str | None = None
) -> tuple[RowGroup, ...]:
    """Read from the footer. Raises `UnreadableInput`; with an `etag`, `ObjectChanged`."""
    with _opened(store, key, size_bytes, etag) as file:
        groups = list(map(file.metadata.row_group, range(file.metadata.num_row_groups)))
        for number, group in enumerate(groups):
            if not 0 <= group.num_rows <= GROUP_ROWS_MAX:
                raise UnreadableInput(f"{key}: row group {number} says that it has {group.num_rows} rows.")
        return tuple(RowGroup(group.num_rows, group.total_byte_size) for group in groups)


@contextmanager
def _opened(store: ObjectReader, key: str, size_bytes: int, etag: str | None) -> Iterator[ParquetObject]:
    def fetch(start: int, end: int) -> bytes:
        return b"".join(store.stream(key, start, end, if_match=etag))

    try:
        yield ParquetObject(fetch, size_bytes)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: of a column's name
        raise UnreadableInput(f"{key} cannot be read as Parquet: {error}.") from error


def _batch_rows(batch: pa.RecordBatch, first_index: int, row_bytes_max: int) -> Iterator[Row | BadRow]:
    batch = _in_microseconds(batch)
    if batch_bytes(batch) <= min(row_bytes_max, BATCH_BYTES_MAX):
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
    columns = []
    for column in batch.columns:
        type = microseconds(column.type)
        columns.append(column if type is column.type else column.cast(type, safe=False))
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
