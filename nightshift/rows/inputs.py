"""A shard's rows in any format, and what planning needs of an object.

An unreadable row becomes a `BadRow`; an unreadable object raises `UnreadableInput`.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from nightshift.errors import ObjectNotFound
from nightshift.jobs import NewShard
from nightshift.objectstore import ObjectInfo, ObjectReader
from nightshift.rows.compression import unpacked
from nightshift.rows.csv_rows import csv_rows
from nightshift.rows.images import image_object, image_rows
from nightshift.rows.lines import BadLine, Line, lines_in_range, parse_object, split_lines
from nightshift.rows.records import BadRow, InputFormat, InputObject, Layout, Row, UnreadableInput, format_of

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

_DELIMITERS: Final = {Layout.CSV: ",", Layout.TSV: "\t"}
SAMPLE_BYTES: Final = 64 * 1024  # of an object's beginning, to guess how many rows it has


def iter_rows(
    store: ObjectReader,
    key: str,
    shard: NewShard,
    *,
    line_bytes_max: int,
    columns: Collection[str] | None = None,
) -> Iterator[Row | BadRow]:
    """The rows of a shard in order, numbered from 0, the same every time.

    `columns`: those that are used, or parts of them, as in templates; None: all. Of Parquet and Arrow only
    these are read. Lines over `line_bytes_max` are skipped without being held in memory. Raises
    `UnreadableInput`, `ObjectNotFound`, `StorageUnavailable`, and `ObjectChanged` if the object was replaced
    since planning.
    """
    etag = shard.source_etag
    format = InputFormat(shard.format)
    if format.is_of_images:
        return image_rows(key, shard)
    if format.layout is Layout.PARQUET:
        # pyarrow takes half a second to import.
        from nightshift.rows.parquet_rows import parquet_rows

        size_bytes = _size_bytes(store, key)
        return parquet_rows(
            store,
            key,
            size_bytes,
            shard.start,
            shard.end,
            etag,
            columns=columns,
            row_bytes_max=line_bytes_max,
        )
    if format.layout is Layout.ARROW:
        from nightshift.rows.arrow_rows import arrow_rows

        return arrow_rows(
            store, key, _size_bytes(store, key), etag, columns=columns, row_bytes_max=line_bytes_max
        )
    if format is InputFormat.JSONL:
        lines = lines_in_range(store, key, shard.start, shard.end, line_bytes_max=line_bytes_max, etag=etag)
        return _json_rows(lines)
    pieces = unpacked(store.stream(key, if_match=etag), format.compression)
    if format.layout is Layout.JSONL:
        rows = _json_rows(split_lines(pieces, line_bytes_max=line_bytes_max, skip_blank=True))
    else:
        delimiter = _DELIMITERS[format.layout]
        rows = csv_rows(pieces, delimiter=delimiter, line_bytes_max=line_bytes_max, columns=columns)
    return _naming(key, rows)


def describe(
    store: ObjectReader,
    info: ObjectInfo,
    uri: str,
    format: str | None = None,
    *,
    sample_bytes: int = SAMPLE_BYTES,
) -> InputObject:
    """Describe an object by its Parquet footer, or an estimate from the first `sample_bytes` (0: none).

    One of no bytes has no rows, in every format. `uri` is recorded in the shards. Raises `UnreadableInput`
    for an unknown or broken format.
    """
    known = InputFormat(format) if format is not None else format_of(info.key)
    if known is InputFormat.IMAGE:
        return image_object(uri, info.etag, info.size_bytes)
    if known is not InputFormat.PARQUET or info.size_bytes == 0:
        rows = _rows_estimated(store, info, known, sample_bytes)
        return InputObject(
            uri=uri, format=known, size_bytes=info.size_bytes, rows_estimated=rows, etag=info.etag
        )
    from nightshift.rows.parquet_rows import parquet_row_groups

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


def _naming(key: str, rows: Iterable[Row | BadRow]) -> Iterator[Row | BadRow]:
    """The same rows. An `UnreadableInput` says in which object it is, and after which row."""
    read = 0
    try:
        for row in rows:
            read += 1
            yield row
    except UnreadableInput as error:
        after = f" after row {read}" if read else ""
        raise UnreadableInput(f"{key} cannot be read{after}: {error.message}") from error


def _json_rows(lines: Iterable[Line]) -> Iterator[Row | BadRow]:
    index = 0
    for line in lines:
        if line.data is not None and not line.data.strip():
            continue
        try:
            yield Row(index, parse_object(line.data))
        except BadLine as bad:
            yield BadRow(index, bad.code, f"Byte {line.offset} of the input: {bad.message}.")
        index += 1


def _size_bytes(store: ObjectReader, key: str) -> int:
    info = store.head(key)
    if info is None:
        raise ObjectNotFound(f"no such object: {key}")
    return info.size_bytes


def _rows_estimated(
    store: ObjectReader, info: ObjectInfo, format: InputFormat, sample_bytes: int
) -> int | None:
    """The number of rows extrapolated from a sample; None without a complete line."""
    if format.layout is Layout.ARROW and info.size_bytes:
        from nightshift.rows.arrow_rows import arrow_rows_estimated

        return arrow_rows_estimated(store, info.key, info.size_bytes, info.etag) if sample_bytes else None
    sampled_bytes = min(sample_bytes, info.size_bytes)
    chunks: Iterable[bytes] = ()
    if sampled_bytes:
        chunks = store.stream(info.key, 0, sampled_bytes, if_match=info.etag)
    lines, last = 0, b""
    with suppress(UnreadableInput):  # a packed sample is cut short
        for piece in unpacked(chunks, format.compression):
            lines += piece.count(b"\n")
            last = piece[-1:]
    if sampled_bytes == info.size_bytes and last not in (b"", b"\n"):
        lines += 1  # the last line is whole, too
    rows = lines - (format.layout in _DELIMITERS)  # the header
    return round(info.size_bytes * rows / sampled_bytes) if rows > 0 else None
