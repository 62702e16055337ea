"""Every part of the input in exactly one shard, whatever the pages; never more shards than a job may have."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.bulk.rows.inputs import image_object
from nightshift.bulk.rows.records import InputFormat, InputObject, RowGroup
from nightshift.bulk.rows.validation import Cut
from nightshift.errors import InvalidRequest
from nightshift.jobs import NewShard, ShardObject
from nightshift.jobs.planning import FIRST_PAGE, PlanCursor
from scheduler.input.sharding import IMAGE_BYTES, IMAGES_MAX, CutPage, Cutter, ShardLimits, cut_validated

LIMITS = ShardLimits(shard_bytes=100, shards_max=50)


def jsonl(size_bytes: int, uri: str = "a.jsonl", rows: int | None = None) -> InputObject:
    return InputObject(uri=uri, format=InputFormat.JSONL, size_bytes=size_bytes, rows_estimated=rows)


def parquet(group_rows: list[int], size_bytes: int, uri: str = "a.parquet") -> InputObject:
    groups = tuple(RowGroup(rows=rows, size_bytes=rows * 8) for rows in group_rows)
    return InputObject(uri=uri, format=InputFormat.PARQUET, size_bytes=size_bytes, row_groups=groups)


def ranges(shards: list[NewShard]) -> list[tuple[int, int | None]]:
    return [(shard.start, shard.end) for shard in shards]


def cut_pages(
    inputs: Sequence[InputObject], limits: ShardLimits, cursor: PlanCursor = FIRST_PAGE
) -> Iterator[CutPage]:
    """Objects whose keys are their places; those that the cursor is behind are not listed."""
    cutter = Cutter(limits, cursor)
    first = 0 if cursor.after is None else int(cursor.after) + 1
    for number, entry in enumerate(inputs[first:], start=first):
        yield from cutter.add(f"{number}", entry)
    yield cutter.rest()


def cut_objects(inputs: Sequence[InputObject], limits: ShardLimits) -> list[NewShard]:
    return [shard for page in cut_pages(inputs, limits) for shard in page.shards]


objects = st.lists(
    st.one_of(
        st.builds(jsonl, st.integers(0, 5000)),
        st.builds(parquet, st.lists(st.integers(0, 50), max_size=20), st.integers(1, 5000)),
        st.builds(
            InputObject,
            uri=st.just("a"),
            format=st.sampled_from([InputFormat.CSV, InputFormat.JSONL_GZ]),
            size_bytes=st.integers(0, 5000),
        ),
    ),
    max_size=8,
)


@given(inputs=objects, shard_bytes=st.integers(1, 2000), shards_max=st.integers(8, 40))
def test_every_byte_and_every_row_group_is_in_exactly_one_shard(
    inputs: list[InputObject], shard_bytes: int, shards_max: int
) -> None:
    named = [
        InputObject(
            uri=str(number),
            format=entry.format,
            size_bytes=entry.size_bytes,
            row_groups=entry.row_groups,
        )
        for number, entry in enumerate(inputs)
    ]
    shards = cut_objects(named, ShardLimits(shard_bytes, shards_max))

    assert len(shards) <= shards_max + len(inputs)
    assert [shard.shard_no for shard in shards] == list(range(len(shards)))
    for entry in named:
        own = [(shard.start, shard.end) for shard in shards if shard.uri == entry.uri]
        if entry.size_bytes == 0:
            assert own == []
        elif entry.format is InputFormat.JSONL:
            assert covered(own) == list(range(entry.size_bytes))
        elif entry.format is InputFormat.PARQUET:
            groups = covered(own)
            assert len(set(groups)) == len(groups)
            assert {n for n, group in enumerate(entry.row_groups) if group.rows} <= set(groups)
        else:
            assert own == [(0, None)]


def covered(own: list[tuple[int, int | None]]) -> list[int]:
    return [place for start, end in own for place in range(start, end or 0)]


def test_a_file_is_cut_into_shards_of_about_the_wanted_size() -> None:
    assert ranges(cut_objects([jsonl(250)], LIMITS)) == [(0, 83), (83, 166), (166, 250)]
    assert ranges(cut_objects([jsonl(100)], LIMITS)) == [(0, 100)]


def test_a_large_input_gets_longer_shards_and_not_more_of_them() -> None:
    shards = cut_objects([jsonl(10**12)], LIMITS)

    assert 45 <= len(shards) <= 51
    assert shards[-1].end == 10**12


def test_shards_grow_with_their_number_as_nobody_knows_what_follows() -> None:
    shards = cut_objects([jsonl(600, str(number)) for number in range(100)], LIMITS)

    pieces = [sum(shard.uri == str(number) for shard in shards) for number in range(100)]
    assert pieces == sorted(pieces, reverse=True)
    assert pieces[0] == 6
    assert pieces[-1] == 1


@given(inputs=objects, page_shards=st.integers(1, 7), page_listed=st.integers(1, 4))
def test_a_cutter_that_goes_on_from_a_cursor_makes_the_shards_that_one_alone_makes(
    inputs: list[InputObject], page_shards: int, page_listed: int
) -> None:
    limits = ShardLimits(
        100, 50, page_shards=page_shards, first_page_shards=page_shards, page_listed=page_listed
    )
    pages, cursor, is_over = [], FIRST_PAGE, False
    while not is_over:
        page = next(cut_pages(inputs, limits, as_stored(cursor)))
        pages.append(page)
        cursor = page.next
        is_over = cursor.begun is None and cursor.objects == len(inputs) and not page.shards
    shards = [shard for page in pages for shard in page.shards]

    assert shards == cut_objects(inputs, ShardLimits(100, 50))
    assert max(len(page.shards) for page in pages) <= page_shards
    assert [page.next.page for page in pages] == list(range(1, len(pages) + 1))
    assert sum(page.size_bytes for page in pages) == sum(entry.size_bytes for entry in inputs)


def as_stored(cursor: PlanCursor) -> PlanCursor:
    return PlanCursor.from_json(cursor.page, json.loads(json.dumps(cursor.to_json())))


@pytest.mark.parametrize("then", [jsonl(1000, "a"), None])
def test_an_object_that_was_replaced_or_deleted_while_it_was_cut_is_refused(then: InputObject | None) -> None:
    limits = ShardLimits(100, 50, first_page_shards=2)
    first = next(Cutter(limits, FIRST_PAGE).add("a", replace(jsonl(1000, "a"), etag="old")))
    cutter = Cutter(limits, first.next)

    with pytest.raises(InvalidRequest, match="a was replaced or deleted") as error:
        list(cutter.add("a", replace(then, etag="new"))) if then else cutter.rest()

    assert error.value.code == "input_changed"


def test_row_groups_stay_together_up_to_a_shards_size() -> None:
    shards = cut_objects([parquet([10, 10, 10, 10, 10], size_bytes=250)], LIMITS)

    assert [(shard.start, shard.end, shard.rows_estimated) for shard in shards] == [
        (0, 2, 20),
        (2, 4, 20),
        (4, 5, 10),
    ]


def test_what_cannot_be_entered_in_the_middle_is_one_shard() -> None:
    entry = InputObject(uri="a.csv", format=InputFormat.CSV, size_bytes=10**9, rows_estimated=5)

    (shard,) = cut_objects([entry], LIMITS)

    assert (shard.start, shard.end, shard.rows_estimated, shard.format) == (0, None, 5, "csv")


def test_estimated_rows_are_shared_among_the_shards() -> None:
    shards = cut_objects([jsonl(400, rows=100)], LIMITS)

    assert [shard.rows_estimated for shard in shards] == [25, 25, 25, 25]


def test_a_validated_file_is_cut_exactly_at_rows() -> None:
    shards = cut_validated("file-a", [Cut(0, 0), Cut(120, 3), Cut(240, 5)], rows=6, size_bytes=300)

    assert [(s.start, s.end, s.first_row, s.rows_estimated) for s in shards] == [
        (0, 120, 0, 3),
        (120, 240, 3, 2),
        (240, 300, 5, 1),
    ]
    assert all(before.end == after.start for before, after in itertools.pairwise(shards))


def image(number: int, file_bytes: int = 1000) -> InputObject:
    return image_object(f"s3://photos/{number:07}.jpg", f"etag-{number}", file_bytes)


def test_tens_of_thousands_of_images_are_a_hundred_shards() -> None:
    """Each image is in one of them, in the order of the listing."""
    shards = cut_objects([image(number) for number in range(20_000)], LIMITS)
    assert len(shards) == -(-20_000 // IMAGES_MAX) < 200
    assert [shard.shard_no for shard in shards] == list(range(len(shards)))
    sources = (source for shard in shards for source in shard.sources)
    assert all(source.uri == f"s3://photos/{number:07}.jpg" for number, source in enumerate(sources))
    assert sum(shard.rows_estimated or 0 for shard in shards) == 20_000


def test_a_shard_of_images_has_their_etags_and_one_alone_is_a_shard_as_before() -> None:
    [two] = cut_objects([image(0), image(1)], LIMITS)
    [alone] = cut_objects([image(0)], LIMITS)
    assert two.objects == (
        ShardObject("s3://photos/0000000.jpg", "etag-0"),
        ShardObject("s3://photos/0000001.jpg", "etag-1"),
    )
    assert (two.format, two.uri) == (InputFormat.IMAGES, two.objects[0].uri)
    assert (alone.format, alone.source_etag, alone.objects) == (InputFormat.IMAGE, "etag-0", ())


def test_large_images_and_those_of_long_names_are_fewer_in_a_shard() -> None:
    large = cut_objects([image(number, IMAGE_BYTES // 4) for number in range(8)], LIMITS)
    assert [len(shard.objects) for shard in large] == [4, 4]
    long = [image_object(f"s3://photos/{number:04}{'x' * 1000}.jpg", "e", 10) for number in range(200)]
    assert max(len(shard.objects) for shard in cut_objects(long, LIMITS)) < 70


@given(
    kinds=st.lists(st.sampled_from(["image", "table", "none"]), max_size=400),
    page_shards=st.integers(1, 3),
    page_listed=st.integers(1, 300),
)
def test_every_image_is_in_one_shard_whichever_pages_end_where(
    kinds: list[str], page_shards: int, page_listed: int
) -> None:
    """Each page is cut by a scheduler of its own, from the cursor that was recorded."""
    limits = ShardLimits(
        100, 50, page_shards=page_shards, first_page_shards=page_shards, page_listed=page_listed
    )
    shards: list[NewShard] = []
    cursor, is_last = FIRST_PAGE, False
    while not is_last:
        cutter = Cutter(limits, cursor)
        first = 0 if cursor.after is None else int(cursor.after) + 1
        page = None
        for number, kind in enumerate(kinds[first:], start=first):
            entry = {"image": image(number), "table": jsonl(50, f"{number}"), "none": None}[kind]
            page = next(cutter.add(f"{number}", entry), None)
            if page is not None:
                break
        page = page or cutter.rest()
        assert len(page.shards) <= page_shards + 1
        shards += page.shards
        cursor, is_last = PlanCursor.from_json(page.next.page, page.next.to_json()), page.is_last

    found_uris = [source.uri for shard in shards for source in shard.sources]
    wanted = [
        f"s3://photos/{number:07}.jpg" if kind == "image" else f"{number}"
        for number, kind in enumerate(kinds)
        if kind != "none"
    ]
    assert found_uris == wanted
    assert [shard.shard_no for shard in shards] == list(range(len(shards)))
