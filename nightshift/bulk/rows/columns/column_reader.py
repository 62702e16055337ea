"""Rows of Parquet row groups, and the row groups of a footer."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from nightshift.bulk.rows.columns.column_rows import batch_rows
from nightshift.bulk.rows.contents import HEAD_BYTES, why_unreadable
from nightshift.bulk.rows.parquet_groups import ParquetObject
from nightshift.bulk.rows.records import BadRow, Row, RowGroup, UnreadableInput
from nightshift.objectstore import ObjectReader

GROUP_ROWS_MAX: Final = 2**31


def parquet_rows(
    store: ObjectReader,
    key: str,
    size_bytes: int,
    first_group: int,
    end_group: int | None,
    etag: str | None = None,
    *,
    columns: Collection[str] | None = None,
    row_bytes_max: int,
) -> Iterator[Row | BadRow]:
    """The rows of the row groups [first_group, end_group), or to the last one for None, with these columns.

    Rows of more than `row_bytes_max` decoded bytes make a `BadRow`. Raises `UnreadableInput`, and with an
    `etag` `ObjectChanged` for another object.
    """
    index = 0
    with _opened(store, key, size_bytes, etag) as file:
        read = file.columns_read(columns)
        for group in range(first_group, file.metadata.num_row_groups if end_group is None else end_group):
            for batch in file.batches(group, read.names):
                yield from batch_rows(batch, index, row_bytes_max, read.unread)
                index += batch.num_rows


def parquet_row_groups(
    store: ObjectReader, key: str, size_bytes: int, etag: str | None = None
) -> tuple[RowGroup, ...]:
    """Read from the footer. Raises `UnreadableInput`; with an `etag`, `ObjectChanged`."""
    with _opened(store, key, size_bytes, etag) as file:
        groups = list(map(file.metadata.row_group, range(file.metadata.num_row_groups)))
        for number, group in enumerate(groups):
            if not 0 <= group.num_rows <= GROUP_ROWS_MAX:
                raise UnreadableInput(f"Row group {number} says that it has {group.num_rows} rows.")
        return tuple(RowGroup(group.num_rows, group.total_byte_size) for group in groups)


def parquet_schema(store: ObjectReader, key: str, size_bytes: int, etag: str) -> pa.Schema:
    """Raises `UnreadableInput`, and `ObjectChanged` for another object."""
    with _opened(store, key, size_bytes, etag) as file:
        return file.schema


@contextmanager
def _opened(store: ObjectReader, key: str, size_bytes: int, etag: str | None) -> Iterator[ParquetObject]:
    def fetch(start: int, end: int) -> bytes:
        return b"".join(store.stream(key, start, end, if_match=etag))

    try:
        yield ParquetObject(fetch, size_bytes)
    except (UnreadableInput, pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # The last: of a column's name.
        head = fetch(0, min(HEAD_BYTES, size_bytes)) if size_bytes else b""
        why = why_unreadable(error, head, (b"PAR1",))
        raise UnreadableInput(why) from error
