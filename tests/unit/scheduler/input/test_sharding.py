"""Every part of the input in exactly one shard, and never more shards than a job may have."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.jobs import NewShard
from nightshift.rows.records import InputFormat, InputObject, RowGroup
from nightshift.rows.validation import Cut
from scheduler.input.sharding import ShardLimits, TooManyShards, cut_objects, cut_validated

LIMITS = ShardLimits(shard_bytes=100, shards_max=50)


def jsonl(size_bytes: int, uri: str = "a.jsonl", rows: int | None = None) -> InputObject:
    return InputObject(uri=uri, format=InputFormat.JSONL, size_bytes=size_bytes, rows_estimated=rows)


def parquet(group_rows: list[int], size_bytes: int, uri: str = "a.parquet") -> InputObject:
    groups = tuple(RowGroup(rows=rows, size_bytes=rows * 8) for rows in group_rows)
    return InputObject(uri=uri, format=InputFormat.PARQUET, size_bytes=size_bytes, row_groups=groups)


def ranges(shards: list[NewShard]) -> list[tuple[int, int | None]]:
    return [(shard.start, shard.end) for shard in shards]


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
            format=found.format,
            size_bytes=found.size_bytes,
            row_groups=found.row_groups,
        )
        for number, found in enumerate(inputs)
    ]
    shards = cut_objects(named, ShardLimits(shard_bytes, shards_max))

    assert len(shards) <= shards_max
    assert [shard.shard_no for shard in shards] == list(range(len(shards)))
    for found in named:
        own = [(shard.start, shard.end) for shard in shards if shard.uri == found.uri]
        if found.size_bytes == 0:
            assert own == []
        elif found.format is InputFormat.JSONL:
            assert covered(own) == list(range(found.size_bytes))
        elif found.format is InputFormat.PARQUET:
            groups = covered(own)
            assert len(set(groups)) == len(groups)
            assert {n for n, group in enumerate(found.row_groups) if group.rows} <= set(groups)
        else:
            assert own == [(0, None)]


def covered(own: list[tuple[int, int | None]]) -> list[int]:
    return [place for start, end in own for place in range(start, end or 0)]


def test_a_file_is_cut_into_shards_of_about_the_wanted_size() -> None:
    assert ranges(cut_objects([jsonl(250)], LIMITS)) == [(0, 83), (83, 166), (166, 250)]
    assert ranges(cut_objects([jsonl(100)], LIMITS)) == [(0, 100)]


def test_a_large_input_gets_longer_shards_and_not_more_of_them() -> None:
    shards = cut_objects([jsonl(10**12)], LIMITS)

    assert 45 <= len(shards) <= 50
    assert shards[-1].end == 10**12


def test_more_objects_than_shards_are_refused_with_both_numbers() -> None:
    with pytest.raises(TooManyShards, match=r"51 input objects.* 50 shards"):
        cut_objects([jsonl(1)] * 51, LIMITS)


def test_row_groups_stay_together_up_to_a_shards_size() -> None:
    shards = cut_objects([parquet([10, 10, 10, 10, 10], size_bytes=250)], LIMITS)

    assert [(shard.start, shard.end, shard.rows_estimated) for shard in shards] == [
        (0, 2, 20),
        (2, 4, 20),
        (4, 5, 10),
    ]


def test_what_cannot_be_entered_in_the_middle_is_one_shard() -> None:
    found = InputObject(uri="a.csv", format=InputFormat.CSV, size_bytes=10**9, rows_estimated=5)

    (shard,) = cut_objects([found], LIMITS)

    assert (shard.start, shard.end, shard.rows_estimated, shard.format) == (0, None, 5, "csv")


def test_shards_keep_the_order_of_the_objects() -> None:
    shards = cut_objects([jsonl(150, "b"), jsonl(0, "empty"), jsonl(50, "a")], LIMITS)

    assert [(shard.shard_no, shard.uri) for shard in shards] == [(0, "b"), (1, "b"), (2, "a")]


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
