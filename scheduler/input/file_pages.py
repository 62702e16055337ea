"""Pages of the shards of an OpenAI batch file. Pure.

The cursor between two pages says in which row of which bytes the next one begins: from there on the file is
cut again without being validated again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nightshift.bulk.rows.validation import Cut
from nightshift.errors import InvalidRequest
from nightshift.jobs import NewShard
from nightshift.jobs.planning import CutObject, PlanCursor
from nightshift.tenants.rates import CHARS_PER_TOKEN
from scheduler.input.pages import ShardPage


@dataclass(frozen=True)
class PlannedFile:
    """A file whose rows are valid, from a job's cursor on."""

    uri: str
    etag: str
    size_bytes: int
    rows: int  # in all
    model: str
    shard_bytes: int


def begins_at(cursor: PlanCursor, uri: str, etag: str) -> Cut | None:
    """Where the next page begins. None: the file is still to be validated.

    Raises InvalidRequest if it is not the file that the last page ended in.
    """
    if cursor.begun is None:
        return None
    if (cursor.begun.key, cursor.begun.etag) != (uri, etag):
        raise InvalidRequest(f"{uri} was replaced while it was cut into shards.", code="input_changed")
    return Cut(offset=cursor.sampled_bytes, first_row=cursor.sampled_rows)


def file_pages(
    file: PlannedFile, cursor: PlanCursor, shards: Sequence[NewShard], page_shards: Callable[[], int]
) -> Iterator[ShardPage]:
    """`shards`: all from the cursor on; at least one. `page_shards`: as many at most, as of now."""
    taken = 0
    while taken < len(shards):
        page = shards[taken : taken + page_shards()]
        taken += len(page)
        following = shards[taken] if taken < len(shards) else None
        next = None if following is None else _cursor(file, cursor, following)
        is_only = cursor.page == 0 and next is None
        end = file.size_bytes if following is None else following.start
        yield ShardPage(
            model=file.model,
            shards=page,
            rows_total=file.rows if next is None else None,
            rows_estimated=None if is_only else sum(shard.rows_estimated or 0 for shard in page),
            tokens_estimated=end // CHARS_PER_TOKEN - cursor.sampled_bytes // CHARS_PER_TOKEN,
            next=next,
        )
        if next is not None:
            cursor = next


def _cursor(file: PlannedFile, before: PlanCursor, following: NewShard) -> PlanCursor:
    assert following.first_row is not None, "the rows of a validated file are numbered"
    begun = CutObject(key=file.uri, etag=file.etag, pieces=following.shard_no, piece_bytes=file.shard_bytes)
    return PlanCursor(
        page=before.page + 1,
        begun=begun,
        listed=1,
        objects=1,
        size_bytes=following.start,
        shards=following.shard_no,
        sampled_rows=following.first_row,
        sampled_bytes=following.start,
    )
