"""Rows of Parquet and Arrow objects, and what planning needs of them."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa

from nightshift.bulk.rows.columns.column_rows import ColumnsRead, batch_rows, columns_read
from nightshift.bulk.rows.columns.decoder import Decoder, DecodingKilled
from nightshift.bulk.rows.columns.messages import BAD_VALUES, BATCH, SCHEMA, TOO_LONG
from nightshift.bulk.rows.contents import HEAD_BYTES, why_unreadable
from nightshift.bulk.rows.records import BadRow, Layout, Row, RowGroup, UnreadableInput
from nightshift.bulk.rows.templates import root_of
from nightshift.bulk.rows.values import Unusable
from nightshift.objectstore import ObjectReader

GROUP_ROWS_MAX: Final = 2**31
KILLS_MAX: Final = 3
"""The number of kills, in one process, after which the object itself is the likely cause."""
_BEGINNINGS: Final = {Layout.PARQUET: (b"PAR1",), Layout.ARROW: (b"ARROW1", b"\xff\xff\xff\xff")}

_kills: Counter[tuple[str, int, str | None]] = Counter()  # by key, size and ETag, in this process


def column_rows(
    store: ObjectReader,
    key: str,
    size_bytes: int,
    layout: Layout,
    etag: str | None = None,
    *,
    groups: tuple[int, int | None] = (0, None),
    columns: Collection[str] | None = None,
    row_bytes_max: int,
) -> Iterator[Row | BadRow]:
    """The rows with these columns, or parts of columns (None: all): of Parquet, those of the row groups from
    the first to before the second, or to the last one for None.

    Rows of more than `row_bytes_max` decoded bytes make a `BadRow`. Raises `UnreadableInput`,
    `StorageUnavailable`, and with an `etag` `ObjectChanged` for another object.
    """
    with _opened(store, key, size_bytes, layout, etag) as decoder:
        if layout is Layout.PARQUET and not any(rows for rows, _ in decoder.groups):
            return
        read = _columns_read(decoder, columns)
        question = {"what": "rows", "names": read.names, "groups": groups, "row_bytes_max": row_bytes_max}
        index, schema = 0, None
        bad_values: dict[str, Unusable] = {}
        for kind, payload in decoder.answers(question):
            if kind == BATCH:
                batch = _batch(payload, schema)
                yield from batch_rows(batch, index, read.unread, bad_values)
                index, bad_values = index + batch.num_rows, {}
            elif kind == SCHEMA:
                schema = _schema(payload)
            elif kind == BAD_VALUES:
                bad_values = {name: Unusable(name, why) for name, why in json.loads(payload).items()}
            elif kind == TOO_LONG:
                size = f"the row has {json.loads(payload)} bytes"
                message = f"{size}, more than this service accepts (LINE_BYTES_MAX)"
                yield BadRow(index, "line_too_long", message)
                index += 1


def parquet_row_groups(
    store: ObjectReader, key: str, size_bytes: int, etag: str | None = None
) -> tuple[RowGroup, ...]:
    """The row groups of a Parquet object, from its footer. Raises `UnreadableInput`; with an `etag`,
    `ObjectChanged`.
    """
    with _opened(store, key, size_bytes, Layout.PARQUET, etag) as decoder:
        for number, (rows, _) in enumerate(decoder.groups):
            if not 0 <= rows <= GROUP_ROWS_MAX:
                raise UnreadableInput(f"Row group {number} says that it has {rows} rows.")
        return tuple(RowGroup(rows, group_bytes) for rows, group_bytes in decoder.groups)


def arrow_rows_estimated(
    store: ObjectReader, key: str, size_bytes: int, etag: str | None = None
) -> int | None:
    """An estimate by the object's first batch with rows. None: it has none. Raises `UnreadableInput`."""
    with _opened(store, key, size_bytes, Layout.ARROW, etag) as decoder:
        [(_, answer)] = decoder.answers({"what": "rows_estimated"})
        rows: int | None = json.loads(answer)
        return rows


def _batch(payload: bytearray, schema: pa.Schema) -> pa.RecordBatch:
    """Raises `UnreadableInput`."""
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
    except pa.ArrowException as error:
        raise UnreadableInput(f"Its values cannot be read: {error}.") from error


def _schema(payload: bytearray) -> pa.Schema:
    """Raises `UnreadableInput`."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(payload))
    except pa.ArrowException as error:
        raise UnreadableInput(f"Its columns cannot be read: {error}.") from error


@contextmanager
def _opened(
    store: ObjectReader, key: str, size_bytes: int, layout: Layout, etag: str | None
) -> Iterator[Decoder]:
    def fetch(start: int, end: int) -> Iterator[bytes]:
        return store.stream(key, start, end, if_match=etag)

    try:
        with closing(Decoder(layout, size_bytes, fetch)) as decoder:
            yield decoder
    except DecodingKilled as error:
        _kills[key, size_bytes, etag] += 1
        if _kills[key, size_bytes, etag] < KILLS_MAX:
            raise
        raise UnreadableInput(f"{error.message} That happened {KILLS_MAX} times.") from error
    except UnreadableInput as error:
        head = b"".join(fetch(0, min(HEAD_BYTES, size_bytes))) if size_bytes else b""
        raise UnreadableInput(why_unreadable(error, head, _BEGINNINGS[layout])) from error


def _columns_read(decoder: Decoder, columns: Collection[str] | None) -> ColumnsRead:
    """The columns that are read for these columns and parts of columns. None: all that can be.

    Raises `UnreadableInput` for one of a type that is not read.
    """
    reason = "has the type {}, which is not read: write it as another one"
    unread = {name: Unusable(name, reason.format(type)) for name, type in decoder.unread.items()}
    for name in sorted({root_of(column, decoder.names) for column in columns or ()} & unread.keys()):
        raise UnreadableInput(unread[name].error().message)
    read = columns_read([name for name in decoder.names if name not in unread], columns)
    if not read.names:
        raise UnreadableInput("It has no column with a name of its own that can be read.")
    is_told = columns is None or bool(read.unread)
    return replace(read, unread={**read.unread, **unread}) if is_told else read
