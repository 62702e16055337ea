"""A shard's rows in any format, and what planning needs of an object.

An unreadable row becomes a `BadRow`; an unreadable object raises `UnreadableInput`.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from nightshift.bulk.rows.contents import content_of
from nightshift.bulk.rows.records import (
    BadRow,
    InputFormat,
    InputObject,
    Layout,
    Row,
    UnreadableInput,
    format_of,
)
from nightshift.bulk.rows.text.csv_rows import csv_rows
from nightshift.bulk.rows.text.decoding import text_of, with_head
from nightshift.bulk.rows.text.json_arrays import array_lines, check_array_bytes
from nightshift.bulk.rows.text.lines import BadLine, Line, lines_in_range, parse_object, split_lines, tail_of
from nightshift.bulk.rows.text.separators import SNIFFED_BYTES, with_separator
from nightshift.errors import ObjectNotFound
from nightshift.jobs import NewShard
from nightshift.objectstore import ObjectChanged, ObjectInfo, ObjectReader, ObjectUri

__all__ = [
    "BadRow",
    "InputFormat",
    "InputObject",
    "Row",
    "UnreadableInput",
    "describe",
    "format_of",
    "iter_rows",
]

SAMPLE_BYTES: Final = 64 * 1024  # of an object's beginning, to guess how many rows it has
IMAGE_COUNTED_BYTES: Final = 1024
"""Bytes that an image counts for where an input's text is estimated by its bytes: 256 tokens, as one of
256 x 256 pixels has. Its file may be of any size."""
KEY_COLUMN: Final = "key"
_KINDS: Final = {Layout.PARQUET: " as Parquet", Layout.ARROW: " as Arrow IPC"}


def iter_rows(
    store: ObjectReader,
    key: str,
    shard: NewShard,
    *,
    line_bytes_max: int,
    columns: Collection[str] | None = None,
    separator: str | None = None,
) -> Iterator[Row | BadRow]:
    """The rows of a shard in order, numbered from 0, the same every time.

    `columns`: those that are used, or parts of them, as in templates; None: all. Of Parquet and Arrow only
    these are read. `separator`: of CSV, as the job tells it; None: as the records show. Lines over
    `line_bytes_max` are skipped without being held in memory. Raises `UnreadableInput`, `ObjectNotFound`,
    `StorageUnavailable`, and `ObjectChanged` if the object was replaced since planning.
    """
    etag = shard.source_etag
    format = InputFormat(shard.format)
    if format.is_of_images:
        return _image_rows(key, shard)
    if format.layout in _KINDS:
        from nightshift.bulk.rows.columns.column_reader import column_rows  # pyarrow is slow to import

        rows = column_rows(
            store,
            key,
            _size_bytes(store, key, shard.uri),
            format.layout,
            etag,
            groups=(shard.start, shard.end),
            columns=columns,
            row_bytes_max=line_bytes_max,
        )
        return _naming(shard.uri, rows, _KINDS[format.layout])
    return _naming(shard.uri, _text_rows(store, key, shard, format, columns, separator, line_bytes_max))


def describe(
    store: ObjectReader,
    info: ObjectInfo,
    uri: str,
    format: str | None = None,
    *,
    sample_bytes: int = SAMPLE_BYTES,
) -> InputObject:
    """Describes an object by its Parquet footer, or an estimate from the first `sample_bytes` (0: none).

    One of no bytes has no rows, in every format. `uri` is recorded in the shards. Raises `UnreadableInput`
    for an unknown or broken format.
    """
    known = InputFormat(format) if format is not None else format_of(info.key)
    if known is InputFormat.IMAGE:
        return image_object(uri, info.etag, info.size_bytes)
    if known is not InputFormat.PARQUET or info.size_bytes == 0:
        with _named(uri, _KINDS.get(known.layout, "")):
            sample = _sampled(store, info, known, sample_bytes)
        return InputObject(
            uri=uri,
            format=known,
            size_bytes=info.size_bytes,
            rows_estimated=sample.rows_estimated,
            etag=info.etag,
            is_whole=sample.is_whole,
        )
    from nightshift.bulk.rows.columns.column_reader import parquet_row_groups

    with _named(uri, _KINDS[known.layout]):
        groups = parquet_row_groups(store, info.key, info.size_bytes, info.etag)
    row_count = sum(group.rows for group in groups)
    return InputObject(
        uri=uri,
        format=known,
        size_bytes=info.size_bytes,
        row_count=row_count,
        rows_estimated=row_count,
        row_groups=groups,
        etag=info.etag,
    )


def separator_of(
    store: ObjectReader, key: str, etag: str | None, format: InputFormat, told: str | None
) -> str | None:
    """The separator by which a CSV is read; None for other formats. Raises UnreadableInput, StorageError."""
    if (named := format.delimiter) is None:
        return None
    stored = store.stream(key, chunk_bytes=SNIFFED_BYTES, if_match=etag)
    return with_separator(text_of(stored, format.compression).pieces, named, told)[0]


def _image_rows(key: str, shard: NewShard) -> Iterator[Row]:
    """A row for each object of a shard. Its key names it, unless the job says otherwise. `key`: of `uri`.

    One that is gone, or another than was planned, is found when it is read, and is the error of its row.
    """
    for index, source in enumerate(shard.sources):
        own_key = ObjectUri.parse(source.uri).key if shard.objects else key
        data = {"image": source.uri, KEY_COLUMN: own_key, "name": own_key.rstrip("/").rpartition("/")[2]}
        yield Row(index, data, source)


def image_object(uri: str, etag: str | None, file_bytes: int) -> InputObject:
    """An empty one counts, too: its row says that it is empty."""
    return InputObject(
        uri=uri,
        format=InputFormat.IMAGE,
        size_bytes=IMAGE_COUNTED_BYTES,
        row_count=1,
        rows_estimated=1,
        etag=etag,
        file_bytes=file_bytes,
    )


def _naming(uri: str, rows: Iterable[Row | BadRow], kind: str = "") -> Iterator[Row | BadRow]:
    """The same rows. An `UnreadableInput` names its object, and says which rows are lost with it; one
    that was replaced or is gone is named, too.
    """
    read = 0
    try:
        for row in rows:
            read += 1
            yield row
    except UnreadableInput as error:
        rest = f" after row {read}, and no row after that one is read" if read else ""
        raise _unreadable(uri, f"{kind}{rest}", error) from error
    except ObjectChanged as error:
        raise ObjectChanged(f"{uri} is not the object it was when the job was planned") from error
    except ObjectNotFound as error:
        raise ObjectNotFound(f"no such object: {uri}") from error


@contextmanager
def _named(uri: str, kind: str) -> Iterator[None]:
    """An `UnreadableInput` names its object."""
    try:
        yield
    except UnreadableInput as error:
        raise _unreadable(uri, kind, error) from error


def _unreadable(uri: str, how: str, error: UnreadableInput) -> UnreadableInput:
    return UnreadableInput(f"{uri} cannot be read{how}: {error.message}")


def _text_rows(
    store: ObjectReader,
    key: str,
    shard: NewShard,
    format: InputFormat,
    columns: Collection[str] | None,
    separator: str | None,
    line_bytes_max: int,
) -> Iterator[Row | BadRow]:
    etag, end = shard.source_etag, shard.end
    if shard.start > 0:
        lines = lines_in_range(store, key, shard.start, end, line_bytes_max=line_bytes_max, etag=etag)
        yield from _json_rows(lines, columns, is_from_start=False)
        return
    text = text_of(store.stream(key, 0, end, if_match=etag), format.compression)
    pieces = text.pieces
    if end is not None and text.is_plain:
        pieces = chain(pieces, tail_of(store, key, end, line_bytes_max, etag))
    if (delimiter := format.delimiter) is not None:
        yield from csv_rows(
            pieces, delimiter=delimiter, line_bytes_max=line_bytes_max, columns=columns, separator=separator
        )
    elif text.is_array:
        yield from _json_rows(array_lines(pieces, line_bytes_max=line_bytes_max), columns)
    else:
        begins_before = end if text.is_plain else None
        lines = split_lines(
            pieces, line_bytes_max=line_bytes_max, starts_before=begins_before, skip_blank=True
        )
        yield from _json_rows(lines, columns)


def _json_rows(
    lines: Iterable[Line], columns: Collection[str] | None, *, is_from_start: bool = True
) -> Iterator[Row | BadRow]:
    """`is_from_start`: whether lines are counted from the object's beginning."""
    index = 0
    for line in lines:
        if line.data is not None and not line.data.strip():
            continue
        try:
            yield Row(index, parse_object(line.data, columns))
        except BadLine as bad:
            place = f"Line {line.number}" if is_from_start else f"The line at byte {line.offset}"
            yield BadRow(index, bad.code, f"{place}: {bad.message}.")
        index += 1


def _size_bytes(store: ObjectReader, key: str, uri: str) -> int:
    info = store.head(key)
    if info is None:
        raise ObjectNotFound(f"no such object: {uri}")
    return info.size_bytes


@dataclass(frozen=True)
class _Sample:
    rows_estimated: int | None  # None without a complete line
    is_whole: bool = False


def _sampled(store: ObjectReader, info: ObjectInfo, format: InputFormat, sample_bytes: int) -> _Sample:
    """Looks at an object's beginning. Raises `UnreadableInput` for what is no text."""
    size_bytes = min(sample_bytes, info.size_bytes)
    if not size_bytes:
        return _Sample(None)
    if format.layout is Layout.ARROW:
        from nightshift.bulk.rows.columns.column_reader import arrow_rows_estimated

        return _Sample(arrow_rows_estimated(store, info.key, info.size_bytes, info.etag))
    stored = store.stream(info.key, 0, size_bytes, if_match=info.etag)
    head, stored = with_head(stored)
    content = content_of(head, format.compression)
    if content.is_array:
        check_array_bytes(info.size_bytes)
    rows = _rows_in(stored, format, is_all=size_bytes == info.size_bytes)
    estimate = round(info.size_bytes * rows / size_bytes) if rows > 0 else None
    return _Sample(estimate, is_whole=not content.is_plain)


def _rows_in(stored: Iterable[bytes], format: InputFormat, *, is_all: bool) -> int:
    """The rows of an object's beginning, or of all of it."""
    rows, last = -(format.delimiter is not None), b""  # the header
    with suppress(UnreadableInput):  # a sample is cut short
        text = text_of(stored, format.compression)
        if text.is_array:
            for _ in array_lines(text.pieces, line_bytes_max=SAMPLE_BYTES):
                rows += 1
            return rows
        for piece in text.pieces:
            rows += piece.count(b"\n")
            last = piece[-1:] or last
    return rows + (is_all and last not in (b"", b"\n"))  # the last line is whole, too
