"""Sends decoded batches in pieces of bounded size, with plain types, to the process that reads their rows."""

from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nightshift.bulk.rows.columns.messages import BAD_VALUES, BATCH, BATCH_BYTES, SCHEMA, TOO_LONG, Channel

PIECE_ROWS: Final = 1024
VALUE_BYTES: Final = 8  # of a number, decoded

Sizes = NDArray[np.int64]


class Pieces:
    """Sends the rows of batches. `sent`: how many so far, with those that are too long."""

    def __init__(self, channel: Channel, row_bytes_max: int, before_each: Callable[[], None]) -> None:
        """`before_each` is called before each piece."""
        self.sent = 0
        self._channel = channel
        self._row_bytes_max = row_bytes_max
        self._before_each = before_each
        self._has_schema = False

    def send(self, batch: pa.RecordBatch) -> None:
        """Raises `pa.ArrowInvalid` for damaged arrays, and MemoryError for a row that is too large."""
        suspects = _with_bad_text(batch)
        first, rows_max = self.sent, PIECE_ROWS
        while (start := self.sent - first) < batch.num_rows:
            try:
                self._send_rows(batch.slice(start, rows_max), suspects)
            except MemoryError:
                if rows_max == 1:
                    raise
                rows_max = max(1, rows_max // 8)

    def _send_rows(self, rows: pa.RecordBatch, suspects: Collection[int]) -> None:
        if _is_surely_at_most(rows, min(self._row_bytes_max, BATCH_BYTES)):
            self._send_piece(rows, suspects)
        else:
            self._send_by_size(rows, suspects)

    def _send_by_size(self, rows: pa.RecordBatch, suspects: Collection[int]) -> None:
        first, total_bytes = 0, 0
        for row, size_bytes in enumerate(row_bytes(rows).tolist()):
            is_too_long = size_bytes > self._row_bytes_max
            if is_too_long or total_bytes + size_bytes > BATCH_BYTES:
                self._send_piece(rows.slice(first, row - first), suspects)
                first, total_bytes = row, 0
            total_bytes += size_bytes
            if is_too_long:
                self._channel.send_json(TOO_LONG, size_bytes)
                self.sent += 1
                first, total_bytes = row + 1, 0
        self._send_piece(rows.slice(first), suspects)

    def _send_piece(self, rows: pa.RecordBatch, suspects: Collection[int]) -> None:
        if rows.num_rows == 0:
            return
        columns = [plain(column) for column in rows.columns]
        bad_values: dict[str, str] = {}
        for number in suspects:
            problem = _text_problem(columns[number])
            if problem is not None and rows.num_rows > 1:
                for row in range(rows.num_rows):
                    self._send_piece(rows.slice(row, 1), suspects)
                return
            if problem is not None:
                name, type = rows.schema.names[number], columns[number].type
                bad_values[name] = f"has a value of the type {type} that cannot be read: {problem}"
                columns[number] = pa.nulls(1, type)
        self._before_each()
        batch = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
        if not self._has_schema:
            self._channel.send(SCHEMA, memoryview(batch.schema.serialize()))
            self._has_schema = True
        if bad_values:
            self._channel.send_json(BAD_VALUES, bad_values)
        self._channel.send(BATCH, memoryview(batch.serialize()))
        self.sent += rows.num_rows


def _with_bad_text(batch: pa.RecordBatch) -> list[int]:
    """The numbers of columns that have text that is no UTF-8. Raises `pa.ArrowInvalid` for other damage."""
    bad = []
    for number, column in enumerate(batch.columns):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
            bad.append(number)
    return bad


def _text_problem(column: pa.Array) -> str | None:
    """Why values have no text. The other values of the array that they are a part of do not count."""
    try:
        column.take(pa.array(range(len(column)))).validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


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
        return type if storage is type.storage_type else storage
    fields = [type.field(number) for number in range(type.num_fields)]
    children = [field.with_type(plain_type(field.type)) for field in fields]
    if pa.types.is_union(type) or (fields == children and not _is_list_view(type)):
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


def _is_surely_at_most(rows: pa.RecordBatch, size_bytes: int) -> bool:
    """Whether rows have no more bytes, as far as that is known without a look at each."""
    types = rows.schema.types
    if all(_is_text(type) or pa.types.is_integer(type) or pa.types.is_floating(type) for type in types):
        return bool(rows.nbytes <= size_bytes)
    return False


def row_bytes(rows: pa.RecordBatch) -> Sizes:
    """The decoded size of each row: texts by their length, anything else by 8 bytes a value, with the names
    of fields, which every object repeats.
    """
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in rows.columns:
        sizes += _value_bytes(column)
    return sizes


def _value_bytes(values: pa.Array) -> Sizes:
    type = values.type
    if (width := _width(type)) is not None:
        return np.full(len(values), width, dtype=np.int64)
    if isinstance(type, pa.BaseExtensionType):
        return _value_bytes(values.storage)
    if _is_view(type):
        return _value_bytes(values.cast(pa.large_binary()))
    if _is_text(type):
        lengths: Sizes = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64)
    if pa.types.is_dictionary(type):
        return _referred_bytes(values.dictionary, values.indices.fill_null(0).to_numpy(zero_copy_only=False))
    if pa.types.is_run_end_encoded(type):
        places = np.arange(values.offset, values.offset + len(values))
        return _referred_bytes(values.values, np.searchsorted(values.run_ends.to_numpy(), places, "right"))
    if pa.types.is_struct(type):
        fields = (_value_bytes(values.field(index)) for index in range(type.num_fields))
        names_bytes = sum(len(type.field(index).name) for index in range(type.num_fields))
        return sum(fields, start=np.full(len(values), VALUE_BYTES + names_bytes, dtype=np.int64))
    if pa.types.is_union(type):
        return np.array([len(repr(value.as_py())) for value in values], dtype=np.int64)
    return _list_bytes(values)


def _referred_bytes(values: pa.Array, places: NDArray[np.integer]) -> Sizes:
    """The size of the value at each place."""
    used, places_in_used = np.unique(places, return_inverse=True)
    if len(values) == 0:  # all are null
        return np.zeros(len(places), dtype=np.int64)
    if _is_view(values.type):  # pyarrow takes none of these
        values = values.cast(pa.large_binary())
    return _value_bytes(values.take(pa.array(used)))[places_in_used]


def _list_bytes(values: pa.Array) -> Sizes:
    type = values.type
    if pa.types.is_fixed_size_list(type):
        size = type.list_size
        offsets = np.arange(values.offset, values.offset + len(values) + 1, dtype=np.int64) * size
        return _range_bytes(values.values, offsets)
    if _is_list_view(type):
        values = plain(values)
    offsets = values.offsets.to_numpy()
    if not pa.types.is_map(type):
        return _range_bytes(values.values, offsets)
    return _range_bytes(values.keys, offsets) + _range_bytes(values.items, offsets)


def _range_bytes(values: pa.Array, offsets: NDArray[np.signedinteger]) -> Sizes:
    """The size of the values between each two offsets."""
    if (width := _width(values.type)) is not None:
        return np.diff(offsets).astype(np.int64) * width + VALUE_BYTES
    sizes = _value_bytes(values.slice(offsets[0], offsets[-1] - offsets[0]))
    before: Sizes = np.concatenate([[0], sizes.cumsum()])
    places = offsets - offsets[0]
    between: Sizes = before[places[1:]] - before[places[:-1]] + VALUE_BYTES
    return between


def _width(type: pa.DataType) -> int | None:
    """The size of each value, if all have the same."""
    if isinstance(type, pa.BaseExtensionType) or pa.types.is_nested(type) or pa.types.is_dictionary(type):
        return None
    if _is_text(type) or _is_view(type) or pa.types.is_run_end_encoded(type):
        return None
    return max(VALUE_BYTES, type.byte_width) if pa.types.is_fixed_size_binary(type) else VALUE_BYTES


def _is_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type) or pa.types.is_binary_view(type))


def _is_text(type: pa.DataType) -> bool:
    is_text = bool(pa.types.is_string(type) or pa.types.is_large_string(type))
    return is_text or bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))
