"""Parquet's row groups, decoded batch by batch in bounded memory, whatever the file says of itself."""

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.bulk.rows.columns.column_rows import ColumnsRead, columns_read
from nightshift.bulk.rows.parquet_pages import (
    BATCH_BYTES,
    BatchTooLarge,
    Fetch,
    RowGroupPages,
    Texts,
    UnsurveyedLists,
)
from nightshift.bulk.rows.parquet_sizes import row_bytes
from nightshift.bulk.rows.parquet_types import leaves
from nightshift.bulk.rows.records import UnreadableInput
from nightshift.objectstore import MIB

BATCH_ROWS: Final = 64  # decoded at a time; documents may be large
SURVEY_ROWS: Final = 512  # of one column, with its dictionary
SURVEYS_MAX: Final = 8  # of one column each
FOOTER_BYTES_MAX: Final = 16 * MIB
FOOTER_LIST_MAX: Final = 100_000  # row groups, columns: Thrift makes room for as many as a list says
INT96_UNIT: Final = "us"  # as nanoseconds, times before 1677 and after 2262 would become others
BUFFER_BYTES: Final = 16 * 1024  # of the decoder, per column: the first read of a page's header


class ParquetObject:
    """An object's footer, and the rows of its row groups."""

    def __init__(self, fetch: Fetch, size_bytes: int) -> None:
        self._fetch = fetch
        self._size_bytes = size_bytes
        with pq.ParquetFile(
            _RangeFile(self._footer, size_bytes),
            thrift_container_size_limit=FOOTER_LIST_MAX,
            coerce_int96_timestamp_unit=INT96_UNIT,
        ) as file:
            self.metadata = file.metadata
            # Not `metadata.schema`, which refers back to the metadata that keeps it: the footer, with every
            # row group of the file, would then be held until Python's garbage collector comes.
            self._columns = pq.ParquetSchema(self.metadata)
            self.schema = file.schema_arrow
            self._names = file.schema_arrow.names
            self._types = [leaf for field in file.schema_arrow for leaf in leaves(field.type)]

    def _footer(self, start: int, end: int) -> bytes:
        if end - start > FOOTER_BYTES_MAX:
            raise UnreadableInput(f"Its footer has {end - start} bytes, more than this service accepts.")
        return self._fetch(start, end)

    def columns_read(self, columns: Collection[str] | None) -> ColumnsRead:
        """Which columns are read for these columns and parts of columns. None: all."""
        return columns_read(self._names, columns)

    def batches(self, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Raises `UnreadableInput` for a row that takes too much memory decoded."""
        metadata = self.metadata.row_group(group)
        if metadata.num_rows == 0:  # its columns may have no pages, nor an offset
            return
        if not names:
            raise UnreadableInput("It has no column with a name of its own.")
        if metadata.num_columns != self.metadata.num_columns:
            raise UnreadableInput(f"Row group {group} has {metadata.num_columns} columns of the schema's.")
        self._check_columns(group)
        texts = self._texts()
        batch_rows = BATCH_ROWS
        listed_bytes = 1  # at most, in a row
        surveys = done_rows = 0
        while True:
            try:
                for batch in self._decoded(group, names, texts, batch_rows, done_rows):
                    yield batch
                    done_rows += batch.num_rows
                return
            except UnsurveyedLists as lists:
                surveys += 1  # each begins the row group anew
                for column in [lists.column] if surveys < SURVEYS_MAX else self._unsurveyed(texts):
                    listed_bytes += self._largest_list_bytes(group, column)
                    texts[column] = Texts.SURVEYED
                batch_rows = min(batch_rows, BATCH_BYTES // listed_bytes)
                if batch_rows == 0:
                    raise UnreadableInput(f"A row has a list of {listed_bytes} bytes.") from None
            except BatchTooLarge as error:
                if batch_rows == 1:
                    raise UnreadableInput(f"A row cannot be decoded: {error}.") from error
                batch_rows = max(1, batch_rows // 4)

    def _check_columns(self, group: int) -> None:
        """Have Arrow look at a row group's columns first: asked for one that is inconsistent, pyarrow ends
        the process.
        """
        source = _RangeFile(_no_page, self._size_bytes)
        options = {"metadata": self.metadata, "pre_buffer": False, "buffer_size": BUFFER_BYTES}
        with pq.ParquetFile(source, **options) as file, suppress(_AtFirstPage):
            next(file.iter_batches(1, [group], use_threads=False), None)

    def _texts(self) -> dict[int, Texts]:
        """How Arrow decodes each column, unless it is told otherwise."""
        return {
            number: Texts.AS_DICTIONARY if pa.types.is_dictionary(type) else Texts.EXPANDED
            for number, type in enumerate(self._types)
        }

    def _unsurveyed(self, texts: Mapping[int, Texts]) -> list[int]:
        """The columns that have texts in lists, but for those that were surveyed."""
        columns = {number: self._columns.column(number) for number in texts}
        return [
            number
            for number, how in texts.items()
            if how is Texts.EXPANDED
            and columns[number].max_repetition_level > 0
            and columns[number].physical_type == "BYTE_ARRAY"
        ]

    def _largest_list_bytes(self, group: int, column: int) -> int:
        """Of a row's texts in this column, as long as they come from its dictionary, which may be smaller.

        Raises `UnreadableInput`.
        """
        path = self._columns.column(column).path
        if pa.types.is_decimal(self._types[column]):  # of such a size they are none, and never a dictionary
            raise UnreadableInput(f"The column {path!r} has decimals that are too large.")
        pages = self._pages(group, {column: Texts.AS_DICTIONARY}, SURVEY_ROWS)
        largest = 0
        with self._reader(pages, [path]) as file:
            try:
                for batch in file.iter_batches(SURVEY_ROWS, [group], [path], use_threads=False):
                    largest = max(largest, *row_bytes(batch).tolist())
                    if pages.has_left_dictionary(column):
                        break
                    pages.begin_batch()
            except BatchTooLarge as error:
                raise UnreadableInput(f"A list cannot be decoded: {error}.") from error
        return largest

    def _decoded(
        self, group: int, names: list[str], texts: Mapping[int, Texts], batch_rows: int, first_row: int
    ) -> Iterator[pa.RecordBatch]:
        pages = self._pages(group, texts, batch_rows)
        rows = 0
        with self._reader(pages) as file:
            for batch in file.iter_batches(batch_rows, [group], names, use_threads=False):
                batch.validate()  # of parts that differ in length, the decoder's result is not checked
                rows += batch.num_rows
                if rows > first_row:
                    yield batch.slice(max(0, batch.num_rows - (rows - first_row)))
                pages.begin_batch()

    def _pages(self, group: int, texts: Mapping[int, Texts], batch_rows: int) -> RowGroupPages:
        metadata = self.metadata.row_group(group)
        return RowGroupPages(metadata, self._columns, texts, self._fetch, batch_rows)

    def _reader(self, pages: RowGroupPages, as_dictionaries: list[str] | None = None) -> pq.ParquetFile:
        return pq.ParquetFile(
            _RangeFile(pages.read, self._size_bytes),
            metadata=self.metadata,
            read_dictionary=as_dictionaries,
            coerce_int96_timestamp_unit=INT96_UNIT,
            buffer_size=BUFFER_BYTES,
            pre_buffer=False,  # it would read all of a row group
        )


class _AtFirstPage(Exception):
    """All columns of a row group are open."""


def _no_page(start: int, end: int) -> bytes:
    raise _AtFirstPage


class _RangeFile(io.RawIOBase):
    """What `fetch` reads, as a seekable file."""

    def __init__(self, fetch: Fetch, size_bytes: int) -> None:
        super().__init__()
        self._fetch = fetch
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
        data = self._fetch(self._position, end)
        self._position += len(data)
        return data
