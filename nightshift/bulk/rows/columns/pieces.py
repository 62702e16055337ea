"""Sends decoded batches in pieces of bounded size, with plain types, to the process that reads their rows."""

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from nightshift.bulk.rows.columns.castable import castable
from nightshift.bulk.rows.columns.messages import BAD_VALUES, BATCH, SCHEMA, TOO_LONG, Channel

PIECE_ROWS: Final = 1024
PIECE_BYTES: Final = 16 * 1024 * 1024  # of a piece's values, decoded; one row may have more
VALUE_BYTES: Final = 8  # of a number, decoded
DECODED_RATIO_MAX: Final = 1000  # rows that share long values reach some 100, a bomb a million
DECODED_GRACE_BYTES: Final = 64 * 1024 * 1024  # before the ratio counts
BAD_VALUE_SIGNS: Final = ("UTF8", "does not fit in precision", "the acceptable range", "whole number of days")
"""Words of pyarrow about one value of a sound array: a text, a decimal, a time of day, a date."""
_TEXTS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


class Unreadable(Exception):
    """The reason why the object cannot be read, as a sentence."""


class Pieces:
    """Sends the rows of batches. `sent`: how many so far, with those that are too long."""

    def __init__(
        self, channel: Channel, row_bytes_max: int, object_bytes: int, before_each: Callable[[], None]
    ) -> None:
        """`object_bytes`: the object's size. `before_each` is called before each piece."""
        self.sent = 0
        self._bytes_left = max(DECODED_GRACE_BYTES, DECODED_RATIO_MAX * object_bytes)
        self._channel = channel
        self._row_bytes_max = row_bytes_max
        self._before_each = before_each
        self._has_schema = False

    def send(self, batch: pa.RecordBatch) -> None:
        """Raises `pa.ArrowInvalid` for damaged arrays, MemoryError for a row that is too large, and
        Unreadable for rows that together have far more bytes than the object.
        """
        suspects = _with_bad_values(batch)
        batch = pa.RecordBatch.from_arrays([castable(column) for column in batch.columns], batch.schema.names)
        first, rows_max = self.sent, PIECE_ROWS
        while (start := self.sent - first) < batch.num_rows:
            try:
                rows = batch.slice(start, rows_max)
                columns = list(map(_plain_column, rows.columns, rows.schema.names))
                self._send(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), suspects)
            except MemoryError:
                if rows_max == 1:
                    raise
                rows_max = max(1, rows_max // 8)

    def _send(self, rows: pa.RecordBatch, suspects: Sequence[int]) -> None:
        """Sends rows by halves, if together they have more bytes than one may have."""
        size_bytes = sum(map(decoded_bytes, rows.columns))
        is_large = size_bytes > min(self._row_bytes_max, PIECE_BYTES)
        if rows.num_rows > 1 and (is_large or any(_problem(rows[number]) for number in suspects)):
            half = rows.num_rows // 2
            self._send(rows.slice(0, half), suspects)
            self._send(rows.slice(half), suspects)
        elif size_bytes > self._row_bytes_max:
            self._channel.send_json(TOO_LONG, size_bytes)
            self.sent += 1
        else:
            self._bytes_left -= sum(map(_known_bytes, rows.columns))
            if self._bytes_left < 0:
                raise Unreadable(
                    f"Its rows have more than {DECODED_RATIO_MAX} times its bytes: put long values that many "
                    "rows repeat into the template."
                )
            self._send_piece(rows, suspects)

    def _send_piece(self, rows: pa.RecordBatch, suspects: Sequence[int]) -> None:
        problems = {number: _problem(rows[number]) for number in suspects}
        bad_values = {number: problem for number, problem in problems.items() if problem is not None}
        for number in bad_values:
            rows = rows.set_column(number, rows.schema.field(number), pa.nulls(1, rows[number].type))
        self._before_each()
        if not self._has_schema:
            self._channel.send(SCHEMA, memoryview(rows.schema.serialize()))
            self._has_schema = True
        if bad_values:
            names = rows.schema.names
            self._channel.send_json(BAD_VALUES, {names[number]: why for number, why in bad_values.items()})
        self._channel.send(BATCH, memoryview(rows.serialize()))
        self.sent += rows.num_rows


def _with_bad_values(batch: pa.RecordBatch) -> list[int]:
    """The numbers of columns with a value that is none of their type, as text that is no UTF-8.

    Raises `pa.ArrowInvalid` for other damage.
    """
    bad = []
    for number, column in enumerate(batch.columns):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if not any(sign in str(error) for sign in BAD_VALUE_SIGNS):
                raise
            bad.append(number)
    return bad


def _problem(column: pa.Array) -> str | None:
    """The reason why values are none of their type. Others of the array that they are a slice of do not
    count.
    """
    try:
        column.take(pa.array(range(len(column)))).validate(full=True)
    except pa.ArrowInvalid as error:
        return f"has a value of the type {column.type} that cannot be read: {error}"
    return None


def _plain_column(column: pa.Array, name: str) -> pa.Array:
    """Raises Unreadable, naming the column, for a value that Python cannot hold in a type without a cast."""
    try:
        return plain(column)
    except (ValueError, ArithmeticError, KeyError) as error:
        reason = f"has a value of the type {column.type} that cannot be read: {error}"
        raise Unreadable(f"The column '{name}' {reason}") from error


def plain(values: pa.Array) -> pa.Array:
    """The same values without dictionaries, views and runs: a message has all that these refer to."""
    type = plain_type(values.type)
    if type is values.type:
        return values
    if pa.types.is_dictionary(values.type):
        dictionary = plain(values.dictionary)
        return pa.DictionaryArray.from_arrays(values.indices, dictionary).cast(type)
    if _is_miscast(values.type):
        return pa.array(values.to_pylist(), type)
    return values.cast(type)


def plain_type(type: pa.DataType) -> pa.DataType:
    """The type without dictionaries, views and runs; itself if it has none."""
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return plain_type(type.value_type)
    if pa.types.is_string_view(type):
        return pa.large_string()
    if pa.types.is_binary_view(type):
        return pa.large_binary()
    if isinstance(type, pa.BaseExtensionType):
        storage = plain_type(type.storage_type)
        return type if storage == type.storage_type else storage
    fields = [type.field(number) for number in range(type.num_fields)]
    children = [field.with_type(plain_type(field.type)) for field in fields]
    if fields == children and not _is_list_view(type):
        return type
    if pa.types.is_struct(type):
        return pa.struct(children)
    if pa.types.is_map(type):
        return pa.map_(plain_type(type.key_type), plain_type(type.item_type))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(children[0], type.list_size)
    return pa.list_(children[0]) if pa.types.is_list(type) else pa.large_list(children[0])


def _is_miscast(type: pa.DataType) -> bool:
    """Whether a type is, or has in it, one that pyarrow does not cast, or casts to other values."""
    children = (type.field(number).type for number in range(type.num_fields))
    is_one = _is_list_view(type) or pa.types.is_run_end_encoded(type)
    return is_one or any(map(_is_miscast, children))


def _is_list_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(type) or pa.types.is_large_list_view(type))


def _known_bytes(values: pa.Array) -> int:
    """The size of a column; nulls in place of lists of a fixed size have none."""
    return decoded_bytes(values.drop_null() if pa.types.is_fixed_size_list(values.type) else values)


def decoded_bytes(values: pa.Array) -> int:
    """The size of plain values: 8 bytes a value, with the length of a text, and the names of fields, which
    every object repeats. What is behind nulls counts, because a message has it.
    """
    type, count = values.type, len(values)
    if isinstance(type, pa.BaseExtensionType):
        return decoded_bytes(values.storage)
    if pa.types.is_struct(type):
        names_bytes = sum(len(type.field(number).name) for number in range(type.num_fields))
        fields = sum(decoded_bytes(values.field(number)) for number in range(type.num_fields))
        return count * (VALUE_BYTES + names_bytes) + fields
    if pa.types.is_fixed_size_list(type):
        items = values.values.slice(values.offset * type.list_size, count * type.list_size)
        return count * VALUE_BYTES + decoded_bytes(items)
    if pa.types.is_nested(type):  # a list of some kind, or a map
        parts = (values.keys, values.items) if pa.types.is_map(type) else (values.values,)
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return count * VALUE_BYTES + sum(decoded_bytes(part.slice(start, end - start)) for part in parts)
    if pa.types.is_fixed_size_binary(type):
        return count * max(VALUE_BYTES, int(type.byte_width))
    if any(is_kind(type) for is_kind in _TEXTS):
        return count * VALUE_BYTES + _text_bytes(values)
    return count * VALUE_BYTES


def _text_bytes(values: pa.Array) -> int:
    if not len(values):
        return 0
    is_large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    buffers = [None, values.buffers()[1]]
    offset_type = pa.int64() if is_large else pa.int32()
    offsets = pa.Array.from_buffers(offset_type, len(values) + 1, buffers, offset=values.offset)
    return int(offsets[-1].as_py() - offsets[0].as_py())
