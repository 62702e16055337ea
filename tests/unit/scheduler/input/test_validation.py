"""The shards of a validated file become pages, each with the place where the next one begins."""

import pytest

from nightshift.bulk.rows.validation import Cut
from nightshift.errors import InvalidRequest
from nightshift.jobs.planning import FIRST_PAGE, PlanCursor
from scheduler.input.pages import ShardPage
from scheduler.input.sharding import cut_validated
from scheduler.input.validation import PlannedFile, begins_at, file_pages

SHARDS, ROWS, SHARD_BYTES = 7, 10, 1000
FILE = PlannedFile(
    uri="file-a", etag="e", size_bytes=SHARDS * SHARD_BYTES, rows=SHARDS * ROWS, model="m", shard_bytes=1000
)
CUTS = [Cut(number * SHARD_BYTES, number * ROWS) for number in range(SHARDS)]


def pages(page_shards: int, cursor: PlanCursor = FIRST_PAGE) -> list[ShardPage]:
    cuts = CUTS[cursor.shards :]
    shards = cut_validated(FILE.uri, cuts, FILE.rows, FILE.size_bytes, FILE.etag, first_no=cursor.shards)
    return list(file_pages(FILE, cursor, shards, page_shards))


def test_all_shards_are_in_pages_once_and_in_order() -> None:
    cut = pages(3)
    assert [[shard.shard_no for shard in page.shards] for page in cut] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [page.rows_estimated for page in cut] == [30, 30, 10]
    assert [page.rows_total for page in cut] == [None, None, 70]
    assert sum(page.tokens_estimated for page in cut) == pages(100)[0].tokens_estimated


def test_another_process_goes_on_where_a_page_ended() -> None:
    first = pages(3)[0]
    assert first.next is not None
    cursor = PlanCursor.from_json(1, first.next.to_json())
    assert begins_at(cursor, "file-a", "e") == CUTS[3]
    [rest] = pages(100, cursor)
    assert [shard.shard_no for shard in rest.shards] == [3, 4, 5, 6]
    assert (rest.rows_total, rest.rows_estimated, rest.next) == (70, 40, None)


def test_one_page_is_not_estimated() -> None:
    [page] = pages(7)
    assert (page.rows_total, page.rows_estimated, page.next) == (70, None, None)


def test_a_file_is_entered_only_as_what_it_was() -> None:
    assert begins_at(FIRST_PAGE, "file-a", "e") is None
    first = pages(3)[0]
    assert first.next is not None
    with pytest.raises(InvalidRequest, match="was replaced"):
        begins_at(first.next, "file-a", "other")
