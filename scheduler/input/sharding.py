"""Cuts input into shards. Pure: sizes in, ranges out; the cost grows with the shards, not with the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from nightshift.jobs import NewShard
from nightshift.rows.records import InputFormat, InputObject
from nightshift.rows.validation import Cut


@dataclass(frozen=True)
class ShardLimits:
    shard_bytes: int
    shards_max: int


class TooManyShards(ValueError):
    """The input has more objects than a job may have shards."""


def cut_objects(objects: Sequence[InputObject], limits: ShardLimits) -> list[NewShard]:
    """Shards of objects that were not read: byte ranges of JSONL, row groups of Parquet, else whole objects.

    An input too large for `shards_max` gets longer shards. Empty objects get none. Raises TooManyShards.
    """
    objects = [found for found in objects if found.size_bytes > 0]
    if len(objects) > limits.shards_max:
        raise TooManyShards(
            f"{len(objects)} input objects exceed the {limits.shards_max} shards a job may have"
        )
    room = max(1, limits.shards_max - len(objects))
    total_bytes = sum(found.size_bytes for found in objects)
    shard_bytes = max(limits.shard_bytes, ceil(total_bytes / room))
    shards: list[NewShard] = []
    for found in objects:
        for piece in _cut(found, shard_bytes):
            shards.append(_numbered(found, piece, len(shards)))
    return shards


def cut_validated(
    uri: str, cuts: Sequence[Cut], rows: int, size_bytes: int, etag: str | None = None
) -> list[NewShard]:
    """Shards of a JSONL file that was read row by row: each begins and ends exactly at a row."""
    ends = [*cuts[1:], Cut(size_bytes, rows)]
    return [
        NewShard(
            shard_no=number,
            uri=uri,
            format=InputFormat.JSONL,
            start=cut.offset,
            end=end.offset,
            rows_estimated=end.first_row - cut.first_row,
            first_row=cut.first_row,
            source_etag=etag,
        )
        for number, (cut, end) in enumerate(zip(cuts, ends, strict=True))
    ]


def whole_object(uri: str, format: InputFormat, rows: int, etag: str | None = None) -> NewShard:
    """The one shard of an object that was read row by row and cannot be cut."""
    return NewShard(
        shard_no=0,
        uri=uri,
        format=format,
        start=0,
        end=None,
        rows_estimated=rows,
        first_row=0,
        source_etag=etag,
    )


@dataclass(frozen=True)
class _Piece:
    start: int
    end: int | None
    rows_estimated: int | None
    first_row: int | None = None


def _cut(found: InputObject, shard_bytes: int) -> Iterator[_Piece]:
    if found.format is InputFormat.JSONL:
        yield from _byte_ranges(found, shard_bytes)
    elif found.format is InputFormat.PARQUET:
        yield from _row_groups(found, shard_bytes)
    else:
        yield _Piece(0, None, found.rows_estimated)


def _byte_ranges(found: InputObject, shard_bytes: int) -> Iterator[_Piece]:
    count = ceil(found.size_bytes / shard_bytes)
    for number in range(count):
        start = found.size_bytes * number // count
        end = found.size_bytes * (number + 1) // count
        share = None if found.rows_estimated is None else ceil(found.rows_estimated / count)
        yield _Piece(start, end, share)


def _row_groups(found: InputObject, shard_bytes: int) -> Iterator[_Piece]:
    """Consecutive row groups, as many as make up a shard's bytes, taking them to be of equal width."""
    rows = sum(group.rows for group in found.row_groups)
    rows_per_shard = max(1, ceil(rows * shard_bytes / found.size_bytes))
    start = held = 0
    for number, group in enumerate(found.row_groups, start=1):
        held += group.rows
        if held >= rows_per_shard or number == len(found.row_groups):
            if held:
                yield _Piece(start, number, held)
            start, held = number, 0


def _numbered(found: InputObject, piece: _Piece, number: int) -> NewShard:
    return NewShard(
        shard_no=number,
        uri=found.uri,
        format=found.format,
        start=piece.start,
        end=piece.end,
        rows_estimated=piece.rows_estimated,
        first_row=piece.first_row,
        source_etag=found.etag,
    )
