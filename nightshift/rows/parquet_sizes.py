"""How large Parquet's values are once they are decoded: a few bytes of a file may stand for gigabytes."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nightshift.objectstore import MIB
from nightshift.rows.records import UnreadableInput

CHUNK_BYTES_MAX: Final = 64 * MIB  # of a column chunk, decoded, whatever its compression …
COMPRESSION_MAX: Final = 1000  # … beyond it, at most so many times its size in the file
VALUE_BYTES: Final = 8  # of a number, decoded
PAGE_HEADER_BYTES: Final = 32  # its first two fields are shorter

Sizes = NDArray[np.int64]


def rows_within(
    bytes_max: int, group: Any, schema: pq.ParquetSchema, read: Callable[[int, int], bytes]
) -> int:
    """How many rows of a row group surely take at most so many bytes decoded; at least 1.

    `read(start, end)` reads the file. Raises `UnreadableInput` for a column that takes far more memory than
    its bytes in the file, by the footer: pages by their size before compression, lists by their values.
    """
    largest = 1
    for index in range(group.num_columns):
        chunk = group.column(index)
        is_list = schema.column(index).max_repetition_level > 0
        decoded = max(chunk.total_uncompressed_size, chunk.num_values * VALUE_BYTES if is_list else 0)
        if decoded > max(CHUNK_BYTES_MAX, COMPRESSION_MAX * chunk.total_compressed_size):
            raise UnreadableInput(
                f"The column {chunk.path_in_schema!r} takes {decoded} bytes decoded, more than "
                f"{COMPRESSION_MAX} times its size in the file."
            )
        if chunk.physical_type == "BYTE_ARRAY":
            largest = max(largest, _repeatable_bytes(chunk, read))
    return max(1, bytes_max // largest)


def _repeatable_bytes(chunk: Any, read: Callable[[int, int], bytes]) -> int:
    """The most bytes that one value may have and many rows share. Raises `UnreadableInput` for too many."""
    if "DELTA_BYTE_ARRAY" in chunk.encodings:  # each value may begin with all of the one before
        return int(chunk.total_uncompressed_size)
    if not chunk.has_dictionary_page:
        return 1
    start = chunk.dictionary_page_offset
    size = _page_bytes(read(start, start + PAGE_HEADER_BYTES))
    if size > CHUNK_BYTES_MAX:
        raise UnreadableInput(f"The column {chunk.path_in_schema!r} has a dictionary of {size} bytes.")
    return size


def _page_bytes(header: bytes) -> int:
    """A page's size before compression: the second field of its header.

    Thrift's compact protocol: fields 1 and 2 are 32-bit integers, each a byte 0x15 and a zigzag varint.
    """
    numbers = []
    position = 0
    for _ in range(2):
        number = shift = 0
        is_integer = header[position : position + 1] == b"\x15"
        position += 1
        while is_integer and position < len(header) and shift < 64:
            number |= (header[position] & 0x7F) << shift
            shift += 7
            position += 1
            if header[position - 1] < 0x80:
                numbers.append(number >> 1)
                break
    if len(numbers) != 2:
        raise UnreadableInput("A page of a dictionary has no readable header.")
    return numbers[1]


def has_dictionaries(type: pa.DataType) -> bool:
    """Whether values of this type may share one, so that an array is smaller than its values."""
    children = (type.field(index).type for index in range(type.num_fields))
    return pa.types.is_dictionary(type) or any(map(has_dictionaries, children))


def row_bytes(batch: pa.RecordBatch) -> Sizes:
    """The decoded size of each row: texts by their length, anything else by 8 bytes a value."""
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
        of_each = _value_bytes(values.dictionary.take(pa.array(used))) if len(values.dictionary) else used
        return of_each[places]
    if pa.types.is_string(type) or pa.types.is_binary(type) or pa.types.is_large_string(type):
        lengths: Sizes = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64)
    if pa.types.is_struct(type):
        fields = (_value_bytes(values.field(index)) for index in range(type.num_fields))
        return sum(fields, start=np.full(len(values), VALUE_BYTES, dtype=np.int64))
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type):
        return _list_bytes(values)
    return np.full(len(values), VALUE_BYTES, dtype=np.int64)


def _list_bytes(values: pa.Array) -> Sizes:
    offsets: Sizes = values.offsets.to_numpy()
    children = values.keys if pa.types.is_map(values.type) else values.values
    before: Sizes = np.concatenate([[0], _value_bytes(children).cumsum()])
    if pa.types.is_map(values.type):
        before += np.concatenate([[0], _value_bytes(values.items).cumsum()])
    sizes: Sizes = before[offsets[1:]] - before[offsets[:-1]] + VALUE_BYTES
    return sizes
