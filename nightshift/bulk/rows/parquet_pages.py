"""What Parquet's pages take decoded, by their own headers: the footer may say anything of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, Final

import pyarrow.parquet as pq

from nightshift.bulk.rows.page_headers import PageHeader, read_page_header
from nightshift.bulk.rows.records import UnreadableInput
from nightshift.objectstore import MIB

BATCH_BYTES: Final = 128 * MIB  # of the pages that a batch begins, decoded …
BATCH_EXPANSION_MAX: Final = 30  # … or so many times their size in the file, if that is more …
BATCH_BYTES_MAX: Final = 1024 * MIB  # … but never beyond
LISTED_BYTES: Final = 8 * MIB  # that lists may take of a dictionary, unsurveyed
KEPT_BYTES_MAX: Final = 256 * MIB  # of texts that the decoder keeps until the end of a row group
COLUMN_BYTES: Final = 64 * MIB  # of a column of a row group, decoded …
COLUMN_EXPANSION_MAX: Final = 1000  # … beyond it, at most so many times its size in the file
FIXED_SIZE_BYTES_MAX: Final = 1 * MIB  # of a value; the decoder makes room for a thousand and more
VALUE_BYTES: Final = 8  # of a number, decoded
READ_AHEAD_BYTES: Final = 1 * MIB  # per column

Fetch = Callable[[int, int], bytes]


class BatchTooLarge(Exception):
    """The pages of a batch may take too much memory decoded. Fewer rows may do."""


class UnsurveyedLists(Exception):
    """Lists may take very much of their column's dictionary: what they take must be known first."""

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


class Texts(Enum):
    """How a column is decoded, if it has texts."""

    EXPANDED = "expanded"
    SURVEYED = "surveyed"  # expanded; how much its lists take from the dictionary is known
    AS_DICTIONARY = "as dictionary"  # each is in memory once, until the end of the row group


@dataclass
class _Column:
    """A column of a row group: `end` is the offset after its last byte in the file."""

    number: int
    name: str
    start: int
    end: int
    is_list: bool
    value_bytes: int | None  # None: as large as the dictionary that it comes from
    texts: Texts
    position: int  # what the decoder reads next
    next_page: int
    next: "_Column | None" = None  # in the file
    unread: bytearray = field(default_factory=bytearray)  # from `next_page` on
    ahead: bytes = b""  # from `position` on
    dictionary_bytes: int = 0
    has_left_dictionary: bool = False
    decoded_bytes: int = 0


class RowGroupPages:
    """A row group's bytes for the decoder, which reads every column in order, page by page.

    Args:
        group: the row group's `pq.RowGroupMetaData`.
        texts: by their numbers, the columns that are decoded, and how their texts are.
        fetch: reads `[start, end)` of the file.
        batch_rows: how many rows the decoder makes at a time.

    Raises `UnreadableInput` for columns that overlap, or of very large values of a fixed size.
    """

    def __init__(
        self, group: Any, schema: pq.ParquetSchema, texts: Mapping[int, Texts], fetch: Fetch, batch_rows: int
    ) -> None:
        self._fetch = fetch
        self._batch_rows = batch_rows
        self._batch_bytes = self._batch_compressed_bytes = 0
        self._kept_bytes = 0
        self._columns = {n: _column(n, group.column(n), schema.column(n), how) for n, how in texts.items()}
        self._read_next = {
            column.start: column for column in self._columns.values() if column.start < column.end
        }
        self._in_file = sorted(self._columns.values(), key=lambda column: column.start)
        for before, after in pairwise(self._in_file):
            if after.start < before.end:
                raise UnreadableInput(f"The columns {before.name!r} and {after.name!r} overlap in the file.")
            before.next = after

    def has_left_dictionary(self, number: int) -> bool:
        """Whether texts of a column have been read that do not come from its dictionary."""
        return self._columns[number].has_left_dictionary

    def begin_batch(self) -> None:
        self._batch_bytes = self._batch_compressed_bytes = 0

    def read(self, start: int, end: int) -> bytes:
        """The file's bytes `[start, end)`, after a look at the headers of the pages that begin there.

        Raises `BatchTooLarge`, `UnsurveyedLists`, and `UnreadableInput` for pages that no writer makes.
        """
        column = self._read_next.pop(start, None)
        if column is None:
            raise UnreadableInput("Its pages are not where the footer says.")
        wanted = min(end, column.end) - start
        if wanted > len(column.ahead):
            self._fetch_ahead(column, wanted)
        data, column.ahead = column.ahead[:wanted], column.ahead[wanted:]
        self._look_at(column, data)
        column.position += len(data)
        if column.position < column.end:
            self._read_next[column.position] = column
        return data

    def _fetch_ahead(self, column: _Column, wanted: int) -> None:
        """Of the columns that follow, too, where they are small."""
        start = column.position + len(column.ahead)
        end = min(max(column.position + wanted, start + READ_AHEAD_BYTES), self._in_file[-1].end)
        fetched = self._fetch(start, end)
        column.ahead += fetched[: column.end - start]
        following = column.next
        while following is not None and following.start < end:
            if not following.ahead and following.position == following.start:
                following.ahead = fetched[following.start - start : following.end - start]
            following = following.next

    def _look_at(self, column: _Column, data: bytes) -> None:
        skipped = max(0, column.next_page - column.position)
        column.unread += data[skipped:]
        begin = 0
        while begin < len(column.unread):
            header = read_page_header(column.unread, begin)
            if header is None:  # it goes on in the next read
                break
            self._count(column, header)
            begin += header.size_bytes + header.compressed_bytes
        column.next_page += begin
        del column.unread[:begin]
        if column.unread and column.position + len(data) >= column.end:  # Arrow may see a page there
            raise UnreadableInput(f"The column {column.name!r} ends within the header of a page.")

    def _count(self, column: _Column, page: PageHeader) -> None:
        if page.is_dictionary:
            if column.next_page != column.start or column.dictionary_bytes:
                raise UnreadableInput(
                    f"The column {column.name!r} has a dictionary that is not its first page."
                )
            column.dictionary_bytes = page.uncompressed_bytes
        column.decoded_bytes += page.uncompressed_bytes
        if column.decoded_bytes > max(COLUMN_BYTES, COLUMN_EXPANSION_MAX * (column.end - column.start)):
            raise UnreadableInput(
                f"The column {column.name!r} takes more than {COLUMN_EXPANSION_MAX} times its size in the "
                "file once it is decoded."
            )
        self._batch_bytes += self._decoded_bytes(column, page)
        self._batch_compressed_bytes += page.compressed_bytes
        if column.texts is Texts.AS_DICTIONARY and not page.uses_dictionary:
            self._kept_bytes += page.uncompressed_bytes
        expanded = min(BATCH_EXPANSION_MAX * self._batch_compressed_bytes, BATCH_BYTES_MAX)
        if self._batch_bytes > max(BATCH_BYTES, expanded) or self._kept_bytes > KEPT_BYTES_MAX:
            raise BatchTooLarge(f"pages of the column {column.name!r} take too much memory decoded")

    def _decoded_bytes(self, column: _Column, page: PageHeader) -> int:
        """What a batch may take of a page, as far as it can be told."""
        value_bytes = column.dictionary_bytes if column.value_bytes is None else column.value_bytes
        if page.shares_beginnings:  # each value may begin with all of the one before
            return page.uncompressed_bytes * (1 + self._batch_rows)
        if page.is_dictionary:
            return page.uncompressed_bytes + (0 if column.is_list else value_bytes * self._batch_rows)
        if column.is_list:
            self._check_lists(column, page)
            return page.uncompressed_bytes + page.values * max(VALUE_BYTES, column.value_bytes or 0)
        return page.uncompressed_bytes

    def _check_lists(self, column: _Column, page: PageHeader) -> None:
        if not page.uses_dictionary:
            column.has_left_dictionary = True
        elif column.value_bytes is None and column.texts is Texts.EXPANDED:
            if page.values * column.dictionary_bytes > LISTED_BYTES:
                raise UnsurveyedLists(column.number)
        elif column.has_left_dictionary:  # no writer does that
            raise UnreadableInput(f"The column {column.name!r} comes back to its dictionary.")


def _column(number: int, chunk: Any, described: Any, texts: Texts) -> _Column:
    if described.length > FIXED_SIZE_BYTES_MAX:
        raise UnreadableInput(
            f"The column {chunk.path_in_schema!r} has values of {described.length} bytes each."
        )
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset  # as Arrow decides it
    value_bytes = {
        "BYTE_ARRAY": VALUE_BYTES if texts is Texts.AS_DICTIONARY else None,
        "FIXED_LEN_BYTE_ARRAY": described.length,
    }
    return _Column(
        number=number,
        name=chunk.path_in_schema,
        start=start,
        end=start + chunk.total_compressed_size,
        is_list=described.max_repetition_level > 0,
        value_bytes=VALUE_BYTES
        if texts is Texts.AS_DICTIONARY
        else value_bytes.get(described.physical_type, VALUE_BYTES),
        texts=texts,
        position=start,
        next_page=start,
    )
