"""Which runs of ended shards become parts: each shard in exactly one, whatever the order they end in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.jobs.part import CutLimits, CutShard, NewPart, cut_parts, least_shards

LIMITS = CutLimits(part_bytes=100, part_rows=1000, part_shards=50)
sizes = st.tuples(st.integers(0, 3) | st.integers(0, 1500), st.integers(0, 30) | st.integers(0, 300))


def shards(states: str, *, rows: int = 10, size_bytes: int = 40) -> list[CutShard]:
    """`a` assigned, `e` ended, `q` still to run."""
    return [
        CutShard(number, state != "q", state == "a", rows, size_bytes) for number, state in enumerate(states)
    ]


def cut(states: str, *, is_complete: bool = True, limits: CutLimits = LIMITS, **of_each: int) -> list[str]:
    """The parts, as `first-last`."""
    parts = cut_parts(shards(states, **of_each), limits, is_complete=is_complete)
    return [f"{part.first_shard}-{part.last_shard}" for part in parts]


@pytest.mark.parametrize(
    ("states", "parts"),
    [
        ("", []),
        ("qqq", []),
        ("aaa", []),
        ("eqqq", []),
        ("eeqq", []),
        ("eeeq", ["0-2"]),  # 120 bytes
        ("eeeeq", ["0-2"]),
        ("eeeeeeq", ["0-2", "3-5"]),
        ("qeeeq", ["1-3"]),  # from its start, although the shard before has not ended
        ("qeeq", []),
        ("aeeq", []),
        ("aeea", ["1-2"]),
        ("eea", ["0-1"]),
        ("aee", ["1-2"]),
        ("ee", ["0-1"]),
        ("eeeea", ["0-2", "3-3"]),  # what is left lies between two parts
        ("qeeeea", ["1-3", "4-4"]),
        ("eqe", []),
        ("eaqaee", ["0-0", "4-5"]),
    ],
)
def test_a_run_is_cut_when_it_is_long_enough_or_cannot_grow(states: str, parts: list[str]) -> None:
    assert cut(states) == parts


def test_a_run_at_the_end_waits_while_shards_are_still_added() -> None:
    assert cut("aee", is_complete=False) == []
    assert cut("ee", is_complete=False) == []
    assert cut("eee", is_complete=False) == ["0-2"]


def test_rows_and_the_number_of_shards_cut_a_run_too() -> None:
    assert cut("eeeeq", size_bytes=0, limits=CutLimits(100, part_rows=20)) == ["0-1", "2-3"]
    assert cut("eeeeq", size_bytes=0, rows=0, limits=CutLimits(100, 100, part_shards=2)) == ["0-1", "2-3"]


def test_shards_without_rows_join_a_part() -> None:
    two = [CutShard(0, True, False, 0, 0), CutShard(1, True, False, 5, 7)]
    assert cut_parts(two, LIMITS, is_complete=True) == [NewPart(0, 1, rows=5, size_bytes=7)]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CutLimits(part_bytes=0, part_rows=1)


def beside(all_of_them: list[CutShard]) -> list[CutShard]:
    """Only what the store reads: the shards that may be cut, and their neighbours."""
    free = {shard.shard_no for shard in all_of_them if shard.is_free}
    return [shard for shard in all_of_them if {shard.shard_no + step for step in (-1, 0, 1)} & free]


@given(of_shards=st.lists(sizes, max_size=40), data=st.data())
def test_every_shard_is_in_exactly_one_part_of_bounded_size(
    of_shards: list[tuple[int, int]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(of_shards))))
    ended: set[int] = set()
    parts: list[NewPart] = []

    def page(count: int) -> list[CutShard]:
        assigned = {number for part in parts for number in range(part.first_shard, part.last_shard + 1)}
        return [
            CutShard(number, number in ended, number in assigned, *of_shards[number])
            for number in range(count)
        ]

    while len(ended) < len(order):
        ended.update(order[len(ended) : len(ended) + data.draw(st.integers(1, 5))])
        # The others are planned later; the last of them with the last pass.
        is_complete = len(ended) == len(order) or data.draw(st.booleans())
        known = page(len(of_shards) if is_complete else max(ended) + 1)
        cut_now = cut_parts(known, LIMITS, is_complete=is_complete)
        assert cut_parts(beside(known), LIMITS, is_complete=is_complete) == cut_now
        parts += cut_now

    in_parts = [number for part in parts for number in range(part.first_shard, part.last_shard + 1)]
    assert sorted(in_parts) == list(range(len(of_shards)))
    for part in parts:
        its = of_shards[part.first_shard : part.last_shard + 1]
        assert (part.rows, part.size_bytes) == (sum(rows for rows, _ in its), sum(size for _, size in its))
        *before, _ = its
        assert sum(size for _, size in before) < LIMITS.part_bytes
        assert sum(rows for rows, _ in before) < LIMITS.part_rows
        assert len(its) <= LIMITS.part_shards


def test_parts_of_a_job_with_very_many_become_longer() -> None:
    shards = [CutShard(number, True, False, rows=10, size_bytes=10) for number in range(10)]
    limits = CutLimits(part_bytes=1, part_rows=1, min_shards=4)

    assert [part.shards for part in cut_parts(shards, limits, is_complete=True)] == [4, 4, 2]
    assert [least_shards(parts) for parts in (0, 4095, 4096, 3 * 4096)] == [1, 1, 2, 8]
    parts = shards_cut = 0
    while shards_cut < 10_000_000:
        shards_cut += least_shards(parts)
        parts += 1
    assert parts < 50_000
