"""Rows of decoded columns: values become JSON, the same for every format that has columns."""

import base64
import math
from collections.abc import Collection, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from nightshift.jobs import JsonObject
from nightshift.objectstore import MIB
from nightshift.rows.parquet_sizes import batch_bytes, row_bytes
from nightshift.rows.parquet_types import microseconds
from nightshift.rows.records import BadRow, Row
from nightshift.rows.templates import parent_column

# What pyarrow raises for a value: KeyError for a time zone, ArithmeticError for a decimal of too many digits.
_UNREADABLE: Final = (ValueError, ArithmeticError, KeyError, pa.ArrowException)

BATCH_BYTES_MAX: Final = 16 * MIB  # a larger batch becomes Python objects row by row


def columns_read(names: Sequence[str], columns: Collection[str] | None) -> list[str] | None:
    """Of an object's columns those to read for these columns and parts of columns. None: all, also if one is
    missing, so that the error can name those there are.
    """
    if columns is None:
        return None
    found = {name if name in names else parent_column(name) or name for name in columns}
    if not found <= set(names):
        return None
    return sorted(found) or list(names[:1])  # one counts the rows


def batch_rows(batch: pa.RecordBatch, first_index: int, row_bytes_max: int) -> Iterator[Row | BadRow]:
    """Times become ISO 8601, decimals strings, bytes base64, NaN null.

    Any other value makes a `BadRow`, as do rows of more than `row_bytes_max` decoded bytes.
    """
    batch = _in_microseconds(batch)
    if batch_bytes(batch) <= min(row_bytes_max, BATCH_BYTES_MAX):
        try:
            records: list[JsonObject] = batch.to_pylist()
        except _UNREADABLE:
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
        except _UNREADABLE as error:
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
