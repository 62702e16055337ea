"""Cuts input into shards. Pure: sizes in, ranges out; the cost grows with the shards, not with the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import Final

from nightshift.bulk.rows.records import InputFormat, InputObject
from nightshift.bulk.rows.validation import Cut
from nightshift.errors import InvalidRequest
from nightshift.jobs import NewShard, ShardObject
from nightshift.jobs.planning import CutObject, PlanCursor

IMAGES_MAX: Final = 128  # in a shard
IMAGE_BYTES: Final = 64 * 1024 * 1024  # their files have no more than this and one more …
IMAGE_NAME_CHARS: Final = 64 * 1024  # … and their names, which are recorded with the shard
DOUBLINGS: Final = 16  # shards get twice as long this often before a job has all that it may have


@dataclass(frozen=True)
class ShardLimits:
    shard_bytes: int
    shards_max: int  # in a job, beside the first one of each of its objects
    page_shards: int = 250  # recorded in one transaction
    first_page_shards: int = 64  # the first page is short, so that rows run soon
    page_listed: int = 50_000  # objects listed for one page: empty ones, and those beside a pattern


@dataclass(frozen=True, kw_only=True)
class CutPage:
    shards: Sequence[NewShard]
    rows_estimated: int | None  # rows of the objects that begin in it, as far as known
    size_bytes: int  # bytes of these objects
    next: PlanCursor
    is_last: bool = False


class Cutter:
    """Cuts objects that were not read, in the order in which they are listed: byte ranges of JSONL, row
    groups of Parquet, many images, else whole objects. Empty ones get no shard, but for images. The same
    objects behind the same cursor make the same shards.
    """

    def __init__(self, limits: ShardLimits, cursor: PlanCursor) -> None:
        self._limits = limits
        self._cursor = cursor
        self._first = cursor
        self._shards: list[NewShard] = []
        self._images: list[InputObject] = []  # in no shard yet; none between two pages
        self._image_bytes = 0
        self._image_name_chars = 0
        self._rows_estimated: int | None = None

    def add(self, key: str, entry: InputObject | None) -> Iterator[CutPage]:
        """The pages that end with this object, or in it. None: it is none of the input's.

        Raises InvalidRequest if it is not the object that the last page ended in.
        """
        begun = self._cursor.begun
        if begun is not None and (begun.key, begun.etag) != (key, entry and entry.etag):
            raise _changed(begun)
        if begun is None:
            self._count(entry)
        if entry is not None and entry.format is InputFormat.IMAGE:
            self._add_image(entry)
        elif entry is not None and entry.size_bytes > 0:
            self._end_images()
            yield from self._cut(key, entry)
        self._cursor = replace(self._cursor, after=key, begun=None)
        if self._is_full or self._cursor.listed - self._first.listed >= self._limits.page_listed:
            yield self._end_page()

    def rest(self) -> CutPage:
        """The last page, which may be empty. Raises InvalidRequest if an object that was begun is gone."""
        if self._cursor.begun is not None:
            raise _changed(self._cursor.begun)
        return replace(self._end_page(), is_last=True)

    def leave_out(self, page: CutPage, blank_bytes: int) -> CutPage:
        """The page that was just made without its shards: they have no rows. `blank_bytes`: read so far."""
        self._cursor = replace(self._cursor, shards=0, extra_shards=0, blank_bytes=blank_bytes)
        self._begin_page()
        return replace(page, shards=(), rows_estimated=None, size_bytes=0, next=self._cursor)

    @property
    def _is_full(self) -> bool:
        most = self._limits.page_shards
        if self._first.shards == 0:
            most = min(most, self._limits.first_page_shards)
        return len(self._shards) >= most

    def _count(self, entry: InputObject | None) -> None:
        before = self._cursor
        if entry is None:
            self._cursor = replace(before, listed=before.listed + 1)
            return
        rows = entry.rows_estimated
        self._cursor = replace(
            before,
            listed=before.listed + 1,
            objects=before.objects + 1,
            size_bytes=before.size_bytes + entry.size_bytes,
            sampled_rows=before.sampled_rows + (rows or 0),
            sampled_bytes=before.sampled_bytes + (0 if rows is None else entry.size_bytes),
        )
        guess = _guess(entry, self._cursor)
        if guess is not None:
            self._rows_estimated = (self._rows_estimated or 0) + guess

    def _cut(self, key: str, entry: InputObject) -> Iterator[CutPage]:
        entry = replace(entry, rows_estimated=_guess(entry, self._cursor))
        begun = self._cursor.begun or CutObject(
            key=key, etag=entry.etag, pieces=0, piece_bytes=self._piece_bytes(entry)
        )
        pieces = islice(_pieces(entry, begun.piece_bytes), begun.pieces, None)
        for number, piece in enumerate(pieces, start=begun.pieces):
            if self._is_full:
                self._cursor = replace(self._cursor, begun=replace(begun, pieces=number))
                yield self._end_page()
            cursor = self._cursor
            self._shards.append(_numbered(entry, piece, cursor.shards))
            self._cursor = replace(
                cursor, shards=cursor.shards + 1, extra_shards=cursor.extra_shards + (number > 0)
            )

    def _piece_bytes(self, entry: InputObject) -> int:
        """Longer the more shards there are already, as what follows is unknown: so they never run out."""
        extra, most = self._cursor.extra_shards, self._limits.shards_max
        wanted = self._limits.shard_bytes << (DOUBLINGS * extra // most)
        return max(wanted, ceil(entry.size_bytes / (max(0, most - extra) + 1)))

    def _add_image(self, entry: InputObject) -> None:
        self._images.append(entry)
        self._image_bytes += entry.file_bytes
        self._image_name_chars += len(entry.uri)
        is_long = self._image_bytes >= IMAGE_BYTES or self._image_name_chars >= IMAGE_NAME_CHARS
        if is_long or len(self._images) >= IMAGES_MAX:
            self._end_images()

    def _end_images(self) -> None:
        """Makes one shard of the images that were added since the last shard."""
        if self._images:
            self._shards.append(_shard_of_images(self._images, self._cursor.shards))
            self._cursor = replace(self._cursor, shards=self._cursor.shards + 1)
            self._images, self._image_bytes, self._image_name_chars = [], 0, 0

    def _begin_page(self) -> None:
        self._first = self._cursor
        self._shards = []
        self._rows_estimated = None

    def _end_page(self) -> CutPage:
        self._end_images()
        self._cursor = replace(self._cursor, page=self._cursor.page + 1)
        page = CutPage(
            shards=self._shards,
            rows_estimated=self._rows_estimated,
            size_bytes=self._cursor.size_bytes - self._first.size_bytes,
            next=self._cursor,
        )
        self._begin_page()
        return page


def _guess(entry: InputObject, cursor: PlanCursor) -> int | None:
    """An object that was not sampled is taken to have as many rows per byte as those that were."""
    if entry.rows_estimated is not None or not cursor.sampled_bytes:
        return entry.rows_estimated
    return round(entry.size_bytes * cursor.sampled_rows / cursor.sampled_bytes)


def _changed(begun: CutObject) -> InvalidRequest:
    return InvalidRequest(
        f"{begun.key} was replaced or deleted while the input was cut into shards.", code="input_changed"
    )


def cut_validated(
    uri: str, cuts: Sequence[Cut], rows: int, size_bytes: int, etag: str | None = None, first_no: int = 0
) -> list[NewShard]:
    """Shards of a JSONL file that was read row by row, from one of them on: each begins and ends exactly at a
    row. `rows`: of the whole file.
    """
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
        for number, (cut, end) in enumerate(zip(cuts, ends, strict=True), start=first_no)
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


def _pieces(entry: InputObject, shard_bytes: int) -> Iterator[_Piece]:
    if entry.format is InputFormat.JSONL and not entry.is_whole:
        yield from _byte_ranges(entry, shard_bytes)
    elif entry.format is InputFormat.PARQUET:
        yield from _row_groups(entry, shard_bytes)
    else:
        yield _Piece(0, None, entry.rows_estimated)


def _byte_ranges(entry: InputObject, shard_bytes: int) -> Iterator[_Piece]:
    count = ceil(entry.size_bytes / shard_bytes)
    for number in range(count):
        start = entry.size_bytes * number // count
        end = entry.size_bytes * (number + 1) // count
        share = None if entry.rows_estimated is None else ceil(entry.rows_estimated / count)
        yield _Piece(start, end, share)


def _row_groups(entry: InputObject, shard_bytes: int) -> Iterator[_Piece]:
    """Consecutive row groups, as many as make up a shard's bytes, taking them to be of equal width."""
    rows = sum(group.rows for group in entry.row_groups)
    rows_per_shard = max(1, ceil(rows * shard_bytes / entry.size_bytes))
    start = held = 0
    for number, group in enumerate(entry.row_groups, start=1):
        held += group.rows
        if held >= rows_per_shard or number == len(entry.row_groups):
            if held:
                yield _Piece(start, number, held)
            start, held = number, 0


def _shard_of_images(images: Sequence[InputObject], number: int) -> NewShard:
    """One alone is as an earlier release cut it."""
    if len(images) == 1:
        return _numbered(images[0], _Piece(0, None, 1), number)
    return NewShard(
        shard_no=number,
        uri=images[0].uri,
        format=InputFormat.IMAGES,
        start=0,
        end=None,
        rows_estimated=len(images),
        objects=tuple(ShardObject(image.uri, image.etag) for image in images),
    )


def _numbered(entry: InputObject, piece: _Piece, number: int) -> NewShard:
    return NewShard(
        shard_no=number,
        uri=entry.uri,
        format=entry.format,
        start=piece.start,
        end=piece.end,
        rows_estimated=piece.rows_estimated,
        first_row=piece.first_row,
        source_etag=entry.etag,
    )
