"""How large decoded values are: those of a dictionary may stand for many times their size."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

VALUE_BYTES: Final = 8  # of a number, decoded

Sizes = NDArray[np.int64]


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Of all its rows, decoded."""
    types = batch.schema.types
    if all(_is_text(type) or pa.types.is_integer(type) or pa.types.is_floating(type) for type in types):
        return int(batch.nbytes)  # as many, and faster to tell
    return int(row_bytes(batch).sum())


def row_bytes(batch: pa.RecordBatch) -> Sizes:
    """The decoded size of each row: texts by their length, anything else by 8 bytes a value, with the names
    of fields, which every object repeats.
    """
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        sizes += _value_bytes(column)
    return sizes


def _value_bytes(values: pa.Array) -> Sizes:
    type = values.type
    if pa.types.is_dictionary(type):
        # Of the values that these rows have, each once.
        indices: Sizes = values.indices.fill_null(0).to_numpy(zero_copy_only=False)
        used, places = np.unique(indices, return_inverse=True)
        dictionary = values.dictionary
        if _is_view(dictionary.type):  # pyarrow takes none of these
            dictionary = dictionary.cast(pa.large_binary())
        of_each = _value_bytes(dictionary.take(pa.array(used))) if len(dictionary) else used
        return of_each[places]
    if isinstance(type, pa.BaseExtensionType):
        return _value_bytes(values.storage)
    if _is_view(type):
        values = values.cast(pa.large_binary())
    if _is_text(values.type):
        lengths: Sizes = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64)
    if pa.types.is_struct(type):
        fields = (_value_bytes(values.field(index)) for index in range(type.num_fields))
        names_bytes = sum(len(type.field(index).name) for index in range(type.num_fields))
        return sum(fields, start=np.full(len(values), VALUE_BYTES + names_bytes, dtype=np.int64))
    if pa.types.is_list_view(type) or pa.types.is_large_list_view(type):
        return _value_bytes(values.cast(pa.large_list(type.value_field)))
    if pa.types.is_fixed_size_list(type):
        return _value_bytes(values.cast(pa.large_list(type.value_field)))
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type):
        return _list_bytes(values)
    width = type.byte_width if pa.types.is_fixed_size_binary(type) else VALUE_BYTES
    return np.full(len(values), width, dtype=np.int64)


def _is_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type) or pa.types.is_binary_view(type))


def _is_text(type: pa.DataType) -> bool:
    is_text = bool(pa.types.is_string(type) or pa.types.is_large_string(type))
    return is_text or bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _list_bytes(values: pa.Array) -> Sizes:
    offsets: Sizes = values.offsets.to_numpy()
    children = values.keys if pa.types.is_map(values.type) else values.values
    before: Sizes = np.concatenate([[0], _value_bytes(children).cumsum()])
    if pa.types.is_map(values.type):
        items = values.items[: len(children)]  # there may be more: those have no key
        before += np.concatenate([[0], _value_bytes(items).cumsum()])
    sizes: Sizes = before[offsets[1:]] - before[offsets[:-1]] + VALUE_BYTES
    return sizes
