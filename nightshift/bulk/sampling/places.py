"""The places of an input that a sample is read from: spread over all of it, because inputs are often sorted.
Pure.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from nightshift.bulk.rows.records import InputFormat, InputObject, Layout
from nightshift.jobs import NewShard

TEXT_BYTES: Final = 4 * 1024 * 1024  # of a piece of JSONL
PLACES: Final = 48  # looked at, each of which costs a request or more


@dataclass(frozen=True)
class Piece:
    """A part of an object that can be read by itself."""

    object_no: int
    shard: NewShard
    rows: float  # as estimated; 0: not known
    size_bytes: int

    @property
    def layout(self) -> Layout:
        return InputFormat(self.shard.format).layout

    @property
    def is_whole_object(self) -> bool:
        return self.shard.start == 0 and self.shard.end is None


def pieces_of(object_no: int, entry: InputObject) -> list[Piece]:
    """The pieces of an object: row groups of Parquet, ranges of plain JSONL, else all of it."""

    def piece(start: int, end: int | None, rows: float, size_bytes: int) -> Piece:
        shard = NewShard(
            shard_no=object_no, uri=entry.uri, format=entry.format, start=start, end=end,
            source_etag=entry.etag,
        )  # fmt: skip
        return Piece(object_no, shard, rows, size_bytes)

    if entry.row_groups:
        groups = enumerate(entry.row_groups)
        return [piece(number, number + 1, group.rows, group.size_bytes) for number, group in groups]
    rows, size_bytes = entry.rows_estimated or 0, entry.size_bytes
    if entry.is_whole or entry.format is not InputFormat.JSONL or size_bytes <= TEXT_BYTES:
        return [piece(0, None, rows, size_bytes)] if size_bytes else []
    bounds = [*range(0, size_bytes, TEXT_BYTES), size_bytes]
    return [
        piece(start, None if end == size_bytes else end, rows * (end - start) / size_bytes, end - start)
        for start, end in pairwise(bounds)
    ]


def spread(pieces: Sequence[Piece], rows: int) -> dict[int, int]:
    """Rows to take, by the piece's number: `rows` in all, and of each part of the input by its rows."""
    places = rows if all(piece.layout is Layout.IMAGE for piece in pieces) else PLACES
    ends = [*accumulate(piece.rows or 1.0 for piece in pieces)]
    chosen: Counter[int] = Counter()
    number = 0
    for place in range(places if pieces else 0):
        at = (place + 0.5) / places * ends[-1]
        while ends[number] < at:
            number += 1
        chosen[number] += 1
    return {number: max(1, round(rows * count / places)) for number, count in chosen.items()}
