"""Rows of Arrow's IPC formats, as the library `datasets` keeps them on a disk."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa

from nightshift.bulk.rows.arrow_buffers import Buffers
from nightshift.bulk.rows.arrow_columns import (
    Budget,
    Column,
    Columns,
    Decoder,
    RowsTooLarge,
    all_buffers,
    child_fields,
    is_read,
    storage_type,
)
from nightshift.bulk.rows.arrow_messages import CONTINUATION, FILE_MARK, BatchHeader, Fetch, Messages
from nightshift.bulk.rows.columns.column_rows import BATCH_BYTES_MAX, ColumnsRead, batch_rows, columns_read
from nightshift.bulk.rows.contents import HEAD_BYTES, why_unreadable
from nightshift.bulk.rows.flat_tables import DAMAGED
from nightshift.bulk.rows.parquet_types import leaves
from nightshift.bulk.rows.records import BadRow, Row, UnreadableInput
from nightshift.bulk.rows.used_columns import root_of
from nightshift.bulk.rows.values import Unusable
from nightshift.objectstore import MIB, ObjectReader

ROWS_AT_ONCE: Final = 256
DICTIONARIES_BYTES_MAX: Final = 64 * MIB  # of an object, decoded
DELTAS_MAX: Final = 1000  # each makes the dictionary anew


def arrow_rows(
    store: ObjectReader,
    key: str,
    size_bytes: int,
    etag: str | None = None,
    *,
    columns: Collection[str] | None = None,
    row_bytes_max: int,
) -> Iterator[Row | BadRow]:
    """The rows of an object in the streaming or the file format, with these columns.

    Values become JSON as those of Parquet do; rows of more than `row_bytes_max` decoded bytes are not read.
    Raises `UnreadableInput`, and with an `etag` `ObjectChanged` for another object.
    """
    index = 0
    with _opened(store, key, size_bytes, etag) as file:
        read = file.columns_read(columns)
        for batch, rows in file.batches(read.names, row_bytes_max):
            if batch is None:
                message = f"the row takes more than {row_bytes_max} bytes (LINE_BYTES_MAX)"
                yield BadRow(index, "line_too_long", message)
            else:
                yield from batch_rows(batch, index, row_bytes_max, read.unread)
            index += rows


def arrow_rows_estimated(
    store: ObjectReader, key: str, size_bytes: int, etag: str | None = None
) -> int | None:
    """From the object's first batch with rows. None: it has none. Raises `UnreadableInput`."""
    with _opened(store, key, size_bytes, etag) as file:
        place = file.messages.first
        for header in file.messages.batches():
            place = min(place, header.body[0])
            if header.dictionary is None and header.rows:
                return round(header.rows * (size_bytes - file.messages.first) / (header.body[1] - place))
            place = header.body[1]
    return None


class _ArrowObject:
    """An object's batches, decoded some rows at a time."""

    def __init__(self, fetch: Fetch, size_bytes: int) -> None:
        self._fetch = fetch
        self.messages = Messages.of(fetch, size_bytes)
        self._dictionaries: dict[int, pa.Array] = {}
        self._dictionary_bytes: dict[int, int] = {}
        self._deltas = 0
        value_types = list(_value_types(self.messages.schema))
        if len(value_types) != len(self.messages.dictionary_ids):
            raise UnreadableInput(DAMAGED)
        self._value_types = dict(zip(self.messages.dictionary_ids, value_types, strict=True))

    def columns_read(self, columns: Collection[str] | None) -> ColumnsRead:
        """Which columns are read for these columns and parts of columns. None: all that can be.

        Raises `UnreadableInput` for one of a type that is not read.
        """
        schema = self.messages.schema
        unusable = {field.name: _unusable(field) for field in schema if not is_read(field.type)}
        for name in sorted({root_of(column, schema.names) for column in columns or ()} & unusable.keys()):
            raise UnreadableInput(unusable[name].error().message)
        read = columns_read([name for name in schema.names if name not in unusable], columns)
        if not read.names:
            raise UnreadableInput("It has no column with a name of its own that can be read.")
        is_told = columns is None or read.unread
        return replace(read, unread={**read.unread, **unusable}) if is_told else read

    def batches(self, names: list[str], row_bytes_max: int) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """Some rows, and how many they are. None: one row that is too large."""
        for header in self.messages.batches():
            if header.dictionary is not None:
                self._take_dictionary(header.dictionary, header)
            elif header.rows:
                yield from self._rows(header, names, row_bytes_max)

    def _rows(
        self, header: BatchHeader, names: list[str], row_bytes_max: int
    ) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        schema = self.messages.schema
        of_fields = Columns(schema, self.messages.dictionary_ids, header).of_fields
        read = [of_fields[schema.get_field_index(name)] for name in names]
        decoder = self._decoder(header, read)
        done, count = 0, ROWS_AT_ONCE
        while done < header.rows:
            count = min(count, header.rows - done)
            budget = Budget(max(BATCH_BYTES_MAX, 2 * row_bytes_max) if count == 1 else BATCH_BYTES_MAX)
            try:
                arrays = [decoder.rows(column, done, count, budget) for column in read]
            except RowsTooLarge:
                if count > 1:
                    count = max(1, count // 4)
                    continue
                yield None, 1
            else:
                yield _batch(arrays, names, count), count
            done += count
            count = min(2 * count, ROWS_AT_ONCE)

    def _decoder(self, header: BatchHeader, columns: list[Column]) -> Decoder:
        numbers = [number for column in columns for number in all_buffers(column)]
        buffers = Buffers(header, numbers, self._fetch, self.messages.small_body(header))
        return Decoder(buffers.read, buffers.size, self._dictionaries)

    def _take_dictionary(self, id: int, header: BatchHeader) -> None:
        """Raises `UnreadableInput` for values that are too large."""
        if id not in self._value_types:
            raise UnreadableInput("It has a dictionary of no column.")
        self._deltas += header.is_delta
        if self._deltas > DELTAS_MAX:
            raise UnreadableInput(f"It adds to its dictionaries more than {DELTAS_MAX} times.")
        kept_bytes = self._dictionary_bytes.get(id, 0) if header.is_delta else 0
        others_bytes = sum(self._dictionary_bytes.values()) - self._dictionary_bytes.get(id, 0)
        budget = Budget(DICTIONARIES_BYTES_MAX - others_bytes - kept_bytes)
        (column,) = Columns(pa.schema([("values", self._value_types[id])]), [], header).of_fields
        try:
            values = self._decoder(header, [column]).rows(column, 0, header.rows, budget)
        except RowsTooLarge:
            raise UnreadableInput(
                f"Its dictionaries take more than {DICTIONARIES_BYTES_MAX} bytes decoded: write its columns "
                "without dictionaries."
            ) from None
        if header.is_delta and id in self._dictionaries:
            values = pa.concat_arrays([self._dictionaries[id], values])
        self._dictionaries[id] = values
        self._dictionary_bytes[id] = DICTIONARIES_BYTES_MAX - others_bytes - budget.left_bytes


def _unusable(field: pa.Field) -> Unusable:
    return Unusable(field.name, f"has the type {field.type}, which is not read: write it as another one")


def _batch(arrays: list[pa.Array], names: list[str], count: int) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    assert batch.num_rows == count, batch.num_rows
    return batch


def _value_types(fields: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    """Of the dictionaries, in the order of their ids in the schema. Raises `UnreadableInput`."""
    for field in fields:
        type = storage_type(field.type)
        if not pa.types.is_dictionary(type):
            yield from _value_types(child_fields(type))
            continue
        if any(map(pa.types.is_dictionary, leaves(type.value_type))):
            raise UnreadableInput(f"The column {field.name!r} has a dictionary within a dictionary.")
        yield type.value_type


@contextmanager
def _opened(store: ObjectReader, key: str, size_bytes: int, etag: str | None) -> Iterator[_ArrowObject]:
    def fetch(start: int, end: int) -> bytes:
        return b"".join(store.stream(key, start, end, if_match=etag))

    try:
        yield _ArrowObject(fetch, size_bytes)
    except (UnreadableInput, pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # The last: of a column's name.
        head = fetch(0, min(HEAD_BYTES, size_bytes)) if size_bytes else b""
        why = why_unreadable(error, head, (FILE_MARK, CONTINUATION))
        raise UnreadableInput(why) from error
