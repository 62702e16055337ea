"""Columns of Arrow's IPC batches: any run of their rows, of which no more is read than a budget allows.

pyarrow itself decodes whole batches, and a batch may be as large as its object.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nightshift.bulk.rows.arrow_messages import BatchHeader
from nightshift.bulk.rows.parquet_sizes import VALUE_BYTES
from nightshift.bulk.rows.records import UnreadableInput

Read = Callable[[int, int, int], bytes]  # of a buffer: its number in the batch, and the bytes [start, end)
Size = Callable[[int], int]  # of a buffer, by its number

VIEW: Final = np.dtype([("size", "<i4"), ("beginning", "V4"), ("number", "<i4"), ("offset", "<i4")])
SHORT_TEXT_BYTES: Final = 12  # which a view holds itself
SHORT: Final = "A column's buffers are shorter than its rows need."


class RowsTooLarge(Exception):
    """The rows take more than the budget once they are decoded. Fewer may do."""


@dataclass
class Budget:
    """For the decoded size of some rows."""

    left_bytes: int

    def take(self, size_bytes: int) -> None:
        """Raises RowsTooLarge."""
        self.left_bytes -= size_bytes
        if self.left_bytes < 0:
            raise RowsTooLarge


@dataclass(frozen=True)
class Column:
    """A column of a batch, or a nested one. `type`: without what an extension adds to it."""

    type: pa.DataType
    declared: pa.DataType
    length: int
    has_nulls: bool
    buffers: range  # their numbers
    children: "tuple[Column, ...]"
    dictionary: int | None  # its id


class Columns:
    """The columns of a batch, in the order of its schema."""

    def __init__(self, schema: pa.Schema, dictionary_ids: list[int], header: BatchHeader) -> None:
        """Raises `UnreadableInput` for a header that does not go with the schema."""
        self._nodes = iter(header.nodes)
        self._next_buffer = 0
        self._views = iter(header.views)
        self._ids = iter(dictionary_ids)
        try:
            self.of_fields = [self._column(field.type) for field in schema]
        except StopIteration:
            raise UnreadableInput("A batch has fewer columns than its schema.") from None
        if self._next_buffer > len(header.buffers):
            raise UnreadableInput("A batch has fewer buffers than its schema needs.")
        if any(column.length < header.rows for column in self.of_fields):
            raise UnreadableInput("A batch has columns of fewer rows than it says.")

    def _column(self, declared: pa.DataType) -> Column:
        type = storage_type(declared)
        length, nulls = next(self._nodes)
        dictionary = next(self._ids) if pa.types.is_dictionary(type) else None
        first, self._next_buffer = self._next_buffer, self._next_buffer + self._own_buffers(type)
        buffers = range(first, self._next_buffer)
        nested = [] if dictionary is not None else child_fields(type)
        children = tuple(self._column(field.type) for field in nested)
        return Column(type, declared, length, nulls != 0, buffers, children, dictionary)

    def _own_buffers(self, type: pa.DataType) -> int:
        if pa.types.is_null(type) or pa.types.is_run_end_encoded(type):
            return 0
        if pa.types.is_struct(type) or pa.types.is_fixed_size_list(type):
            return 1
        if pa.types.is_union(type):
            return 1 if type.mode == "sparse" else 2
        if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
            return 2 + next(self._views)
        is_view = pa.types.is_list_view(type) or pa.types.is_large_list_view(type)
        return 3 if is_view or _is_text(type) else 2


def all_buffers(column: Column) -> Iterator[int]:
    """Of it and of those nested in it."""
    yield from column.buffers
    for child in column.children:
        yield from all_buffers(child)


@dataclass(frozen=True)
class Decoder:
    """Makes arrays of a batch's buffers."""

    read: Read
    size: Size
    dictionaries: dict[int, pa.Array]

    def rows(self, column: Column, first: int, count: int, budget: Budget) -> pa.Array:
        """The values [first, first + count).

        Raises RowsTooLarge, `UnreadableInput`, and `pa.ArrowException` for a dictionary without the values.
        """
        if first + count > column.length:
            raise UnreadableInput(SHORT)
        if count == 0:
            return _no_values(column.declared)
        array = self._stored_rows(column, first, count, budget)
        if column.declared is column.type:
            return array
        return pa.ExtensionArray.from_storage(column.declared, array)

    def _stored_rows(self, column: Column, first: int, count: int, budget: Budget) -> pa.Array:
        type = column.type
        if pa.types.is_null(type):
            budget.take(count * VALUE_BYTES)
            return pa.nulls(count)
        if pa.types.is_dictionary(type):
            return self._of_dictionary(column, first, count, budget)
        if _is_text(type):
            return self._texts(column, first, count, budget)
        if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
            return self._views(column, first, count, budget)
        if pa.types.is_struct(type):
            names_bytes = sum(len(type.field(index).name) for index in range(type.num_fields))
            budget.take(count * (VALUE_BYTES + names_bytes))
            children = [self.rows(child, first, count, budget) for child in column.children]
            return pa.Array.from_buffers(type, count, [self._valid(column, first, count)], children=children)
        if pa.types.is_fixed_size_list(type):
            budget.take(count * VALUE_BYTES)
            size = type.list_size
            child = self.rows(column.children[0], first * size, count * size, budget)
            return pa.Array.from_buffers(type, count, [self._valid(column, first, count)], children=[child])
        if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type):
            return self._lists(column, first, count, budget)
        return self._fixed(column, type, first, count, budget)

    def _of_dictionary(self, column: Column, first: int, count: int, budget: Budget) -> pa.Array:
        assert column.dictionary is not None, "by its type"
        indices = self._fixed(column, column.type.index_type, first, count, budget)
        values = self.dictionaries.get(column.dictionary)
        if values is None:
            raise UnreadableInput("A batch comes before its dictionary.")
        return pa.DictionaryArray.from_arrays(indices, values, ordered=column.type.ordered)

    def _texts(self, column: Column, first: int, count: int, budget: Budget) -> pa.Array:
        budget.take(count * VALUE_BYTES)
        is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        offsets = self._offsets(column, first, count, is_large)
        start, end = int(offsets[0]), int(offsets[-1])
        budget.take(end - start)
        data = self._bytes(column.buffers[2], start, end)
        buffers = [self._valid(column, first, count), pa.py_buffer(offsets - offsets[0]), pa.py_buffer(data)]
        return pa.Array.from_buffers(column.type, count, buffers)

    def _views(self, column: Column, first: int, count: int, budget: Budget) -> pa.Array:
        """Texts that say where they lie: short ones in their views, long ones in any of the data buffers."""
        budget.take(count * VALUE_BYTES)
        data = self._bytes(column.buffers[1], first * VIEW.itemsize, (first + count) * VIEW.itemsize)
        views = np.frombuffer(data, dtype=VIEW).copy()
        valid = self._valid(column, first, count)
        if valid is not None:
            bits = np.unpackbits(np.frombuffer(valid, dtype=np.uint8), count=count, bitorder="little")
            views["size"][bits == 0] = 0  # what a null's view says is not looked at
        if (views["size"] < 0).any():
            raise UnreadableInput(SHORT)
        budget.take(int(views["size"].sum(dtype=np.int64)))
        spans = self._spans(column, views, budget)
        texts = [
            view.tobytes()[4 : 4 + size]
            if size <= SHORT_TEXT_BYTES
            else spans[number][1][offset - spans[number][0] :][:size]
            for view, (size, _, number, offset) in zip(views, views.tolist(), strict=True)
        ]
        offsets = np.concatenate([[0], views["size"].cumsum(dtype=np.int64)])
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
        is_text = pa.types.is_string_view(column.type)
        plain = pa.Array.from_buffers(pa.large_string() if is_text else pa.large_binary(), count, buffers)
        return plain.cast(column.type)

    def _spans(
        self, column: Column, views: NDArray[np.void], budget: Budget
    ) -> dict[int, tuple[int, memoryview]]:
        """By the number of a data buffer, the part that long texts lie in, and where it begins."""
        long_views = views[views["size"] > SHORT_TEXT_BYTES]
        spans = {}
        for number in np.unique(long_views["number"]).tolist():
            of_buffer = long_views[long_views["number"] == number]
            starts = of_buffer["offset"].astype(np.int64)
            start, end = int(starts.min()), int((starts + of_buffer["size"]).max())
            if start < 0 or not 0 <= number < len(column.buffers) - 2:
                raise UnreadableInput(SHORT)
            budget.take(end - start)
            spans[number] = start, memoryview(self._bytes(column.buffers[2 + number], start, end))
        return spans

    def _lists(self, column: Column, first: int, count: int, budget: Budget) -> pa.Array:
        budget.take(count * VALUE_BYTES)
        offsets = self._offsets(column, first, count, pa.types.is_large_list(column.type))
        start, end = int(offsets[0]), int(offsets[-1])
        child = self.rows(column.children[0], start, end - start, budget)
        buffers = [self._valid(column, first, count), pa.py_buffer(offsets - offsets[0])]
        return pa.Array.from_buffers(column.type, count, buffers, children=[child])

    def _fixed(self, column: Column, type: pa.DataType, first: int, count: int, budget: Budget) -> pa.Array:
        _no_values(type)
        try:
            bits = int(type.bit_width)
        except ValueError:
            raise _not_read(column.declared) from None
        budget.take(count * max(VALUE_BYTES, bits // 8))
        number = column.buffers[1]
        if bits == 1:
            values = self._bits(number, first, count)
        else:
            values = self._bytes(number, first * bits // 8, (first + count) * bits // 8)
        return pa.Array.from_buffers(type, count, [self._valid(column, first, count), pa.py_buffer(values)])

    def _offsets(self, column: Column, first: int, count: int, is_large: bool) -> NDArray[np.signedinteger]:
        width = 8 if is_large else 4
        data = self._bytes(column.buffers[1], first * width, (first + count + 1) * width)
        offsets = np.frombuffer(data, dtype=f"<i{width}")
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
            raise UnreadableInput("The offsets of a column do not grow.")
        return offsets

    def _valid(self, column: Column, first: int, count: int) -> pa.Buffer | None:
        number = column.buffers[0]
        if not column.has_nulls or self.size(number) == 0:
            return None
        return pa.py_buffer(self._bits(number, first, count))

    def _bits(self, number: int, first: int, count: int) -> bytes:
        """Moved so that they begin with a byte."""
        data = self._bytes(number, first // 8, (first + count + 7) // 8)
        if first % 8 == 0:
            return data
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        return np.packbits(bits[first % 8 : first % 8 + count], bitorder="little").tobytes()

    def _bytes(self, number: int, start: int, end: int) -> bytes:
        if end > self.size(number):
            raise UnreadableInput(SHORT)
        return self.read(number, start, end) if start < end else b""


def _no_values(type: pa.DataType) -> pa.Array:
    """Raises `UnreadableInput` for a type of whose arrays pyarrow has no class."""
    try:
        return pa.nulls(0, type)
    except KeyError:
        raise _not_read(type) from None


def _not_read(type: pa.DataType) -> UnreadableInput:
    return UnreadableInput(f"Columns of the type {type} are not read: write them as another one.")


def is_read(type: pa.DataType) -> bool:
    """Whether columns of the type are decoded."""
    type = storage_type(type)
    if pa.types.is_dictionary(type):
        return is_read(type.value_type)
    if pa.types.is_fixed_size_list(type) or pa.types.is_list(type) or pa.types.is_large_list(type):
        return is_read(type.value_type)
    if pa.types.is_struct(type) or pa.types.is_map(type):
        return all(is_read(field.type) for field in child_fields(type))
    is_view = pa.types.is_string_view(type) or pa.types.is_binary_view(type)
    return is_view or _is_text(type) or pa.types.is_null(type) or _is_fixed(type)


def _is_fixed(type: pa.DataType) -> bool:
    """Whether each value has the same bits, and pyarrow a class of its arrays."""
    try:
        pa.nulls(0, type)
        return bool(type.bit_width)
    except (KeyError, ValueError):
        return False


def storage_type(type: pa.DataType) -> pa.DataType:
    return type.storage_type if isinstance(type, pa.BaseExtensionType) else type


def child_fields(type: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(type):
        return [pa.field("entries", pa.struct([type.key_field, type.item_field]))]
    return [type.field(index) for index in range(type.num_fields)]


def _is_text(type: pa.DataType) -> bool:
    is_text = bool(pa.types.is_string(type) or pa.types.is_large_string(type))
    return is_text or bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))
