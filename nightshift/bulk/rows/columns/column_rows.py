"""Rows of decoded columns: values become those of `values.py`, the same for every format that has columns."""

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.bulk.rows.records import Row
from nightshift.bulk.rows.templates import refuse_twice, root_of
from nightshift.bulk.rows.values import EXACT_MAX, Unusable, decimal_text

FLOAT_WHOLE_FROM: Final = 2**24  # from here on a float is whole, and has fewer digits than its number …
HALF_WHOLE_FROM: Final = 2**11  # … and one of 16 bits

# What pyarrow raises for a value: KeyError for a time zone, ArithmeticError for a decimal of too many digits.
_UNREADABLE: Final = (ValueError, ArithmeticError, KeyError, pa.ArrowException)

# As pyarrow writes times: their nanoseconds, and their zone.
_NANOSECONDS: Final = re.compile(r"(.+\.[0-9]{6})([0-9]{3})(Z|[+-][0-9]{4})?")


@dataclass(frozen=True)
class ColumnsRead:
    """The columns of an object that are read."""

    names: list[str]
    unread: Mapping[str, Unusable]  # the others, where a column is missing: an error names those there are


def columns_read(names: Sequence[str], columns: Collection[str] | None) -> ColumnsRead:
    """The columns of an object that are read for these columns and parts of columns. None: all.

    Raises `UnreadableInput` for a column among them that the object has twice.
    """
    twice = {name for name, count in Counter(names).items() if count > 1}
    refuse_twice(twice, columns)
    once = [name for name in names if name not in twice]
    if columns is None:
        return ColumnsRead(once, {})
    roots = {root_of(column, names) for column in columns}
    present = sorted(roots & set(once)) or once[:1]  # one counts the rows
    if roots <= set(once):
        return ColumnsRead(present, {})
    return ColumnsRead(
        present, {name: Unusable(name, "is not read") for name in names if name not in present}
    )


def batch_rows(
    batch: pa.RecordBatch,
    first_index: int,
    unread: Mapping[str, Unusable],
    bad_values: Mapping[str, Unusable],
) -> Iterator[Row]:
    """The rows of a batch, each with the `unread` columns. A value that Python cannot hold is an `Unusable`
    of its row. `bad_values`: of a batch of one row, those that could not be decoded.
    """
    names = batch.schema.names
    try:
        columns = [_exact(column).to_pylist(maps_as_pydicts="strict") for column in batch.columns]
    except _UNREADABLE:  # one value fails the whole column
        for position in range(batch.num_rows):
            row = batch.take(pa.array([position]))  # a slice of lists is cast with all their values
            record = {name: _only_value(row[number], name) for number, name in enumerate(names)}
            yield Row(first_index + position, {**record, **unread, **bad_values})
        return
    for index, values in enumerate(zip(*columns, strict=True), start=first_index):
        record = {name: _value(value, name) for name, value in zip(names, values, strict=True)}
        yield Row(index, {**record, **unread, **bad_values} if unread or bad_values else record)


def _only_value(column: pa.Array, name: str) -> Any:
    try:
        (value,) = _exact(column).to_pylist(maps_as_pydicts="strict")
    except _UNREADABLE as error:
        return Unusable(name, f"has a value of the type {column.type} that cannot be read: {error}")
    return _value(value, name)


def _exact(column: pa.Array) -> pa.Array:
    """The same values in types that Python has: microseconds, and doubles. Raises `pa.ArrowException`."""
    type = column.type
    if pa.types.is_float16(type):
        halves = column.to_numpy(zero_copy_only=False)
        shortest = pa.array([float(str(half)) for half in halves], pa.float64(), mask=_nulls(column))
        exact = pa.array([float(half) for half in halves], pa.float64(), mask=_nulls(column))
        return _whole_exact(shortest, exact, HALF_WHOLE_FROM)
    as_texts = with_floats_as(type, pa.string())
    if as_texts is not type:  # 0.1 is the shortest text for its float, and no other double's
        shortest = column.cast(as_texts).cast(microseconds(with_floats_as(type, pa.float64())))
        if pa.types.is_float32(type):
            return _whole_exact(shortest, column.cast(pa.float64()), FLOAT_WHOLE_FROM)
        return shortest
    as_microseconds = microseconds(type)
    if as_microseconds is type:
        return column
    try:
        return column.cast(as_microseconds)
    except pa.ArrowInvalid:
        if not pa.types.is_temporal(type):
            raise
        return _nanosecond_texts(column)


def _whole_exact(shortest: pa.Array, exact: pa.Array, whole_from: int) -> pa.Array:
    """The doubles of the shortest texts, but the very numbers where all are whole: these may be ids."""
    size = pc.abs(exact)
    is_whole = pc.and_(pc.greater_equal(size, whole_from), pc.less(size, EXACT_MAX))
    return pc.if_else(is_whole, exact, shortest)


def _nulls(column: pa.Array) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False)


def _nanosecond_texts(column: pa.Array) -> pa.Array:
    """Times and durations with nanoseconds, which Python's lack, as the texts that theirs become."""
    if pa.types.is_duration(column.type):
        nanoseconds = column.cast(pa.int64()).to_pylist()
        return pa.array([None if value is None else _duration_text(value) for value in nanoseconds])
    return pa.array([None if text is None else _iso(text) for text in column.cast(pa.string()).to_pylist()])


def _iso(text: str) -> str:
    """The time as `isoformat` writes it, with nanoseconds where there are any."""
    match = _NANOSECONDS.fullmatch(text)
    assert match is not None, "pyarrow writes nine digits"
    time, nanoseconds, zone = match[1].replace(" ", "T"), match[2], match[3] or ""
    time = f"{time}{nanoseconds}" if nanoseconds != "000" else time.removesuffix(".000000")
    return time + ("+00:00" if zone == "Z" else zone and f"{zone[:3]}:{zone[3:]}")


def _duration_text(nanoseconds: int) -> str:
    """ISO 8601's, in seconds."""
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{'-' if nanoseconds < 0 else ''}PT{seconds}{fraction}S"


def _value(value: Any, name: str) -> Any:
    """A value of a column. At the top, a decimal stays one."""
    return value if isinstance(value, Decimal) else _part(value, name)


def _part(value: Any, name: str) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value, name)
    if isinstance(value, list):
        return [_part(item, name) for item in value]
    if isinstance(value, dict):
        return _object(value, name)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration_text(value // timedelta(microseconds=1) * 1000)
    if isinstance(value, bytes):
        return _decoded(value, name)
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, UUID):
        return str(value)
    return Unusable(name, f"has a value of the type {type(value).__name__}, which has no text")


def _object(value: dict[Any, Any], name: str) -> Any:
    """A struct, or a map, whose keys may be of any type."""
    keys = [_part(key, name) for key in value]
    if any(isinstance(key, Unusable | dict | list) for key in keys):
        return Unusable(name, "has a map whose keys have no text")
    texts = (key if isinstance(key, str) else json.dumps(key) for key in keys)
    return dict(zip(texts, (_part(item, name) for item in value.values()), strict=True))


def _decoded(value: bytes, name: str) -> str | Unusable:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and "\0" not in text:
        return text
    what = "are no UTF-8 text" if text is None else "have a NUL"
    reason = (
        f"holds bytes that {what} (binary, as an INTERVAL of Parquet is): write it as text, such as base64"
    )
    return Unusable(name, reason, base64.b64encode(value).decode())


def _not_finite(value: float, name: str) -> Unusable:
    text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return Unusable(
        name, f"is {text} (floating point), which no request can hold: write null or a text", text
    )


def leaves(type: pa.DataType) -> Iterator[pa.DataType]:
    """The types of a column's values, in Parquet's order."""
    if isinstance(type, pa.BaseExtensionType):
        type = type.storage_type
    if type.num_fields == 0:
        yield type
    for index in range(type.num_fields):
        yield from leaves(type.field(index).type)


def microseconds(type: pa.DataType) -> pa.DataType:
    """The same type with microseconds where it has nanoseconds; itself if it has none."""
    return _with_leaves(type, _in_microseconds)


def with_floats_as(type: pa.DataType, double: pa.DataType) -> pa.DataType:
    """The same type with another one where it has floats of 32 bits; itself if it has none."""
    return _with_leaves(type, lambda leaf: double if pa.types.is_float32(leaf) else leaf)


def _in_microseconds(leaf: pa.DataType) -> pa.DataType:
    if getattr(leaf, "unit", None) != "ns":
        return leaf
    if pa.types.is_timestamp(leaf):
        return pa.timestamp("us", leaf.tz)
    return pa.time64("us") if pa.types.is_time64(leaf) else pa.duration("us")


def _with_leaves(type: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The same type with changed leaves; itself if none changes, or if it is of a kind that is not cast."""
    if all(change(leaf) is leaf for leaf in leaves(type)):
        return type

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(_with_leaves(field.type, change))

    if pa.types.is_struct(type):
        return pa.struct([changed(type.field(index)) for index in range(type.num_fields)])
    if pa.types.is_list(type):
        return pa.list_(changed(type.value_field))
    if pa.types.is_large_list(type):
        return pa.large_list(changed(type.value_field))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(changed(type.value_field), type.list_size)
    if pa.types.is_map(type):
        return pa.map_(changed(type.key_field), changed(type.item_field))
    return change(type) if type.num_fields == 0 and not isinstance(type, pa.BaseExtensionType) else type
