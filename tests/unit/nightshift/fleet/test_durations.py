"""Durations in buckets: sums of several processes, and quantiles."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.fleet.durations import Durations

BOUNDS = (0.1, 0.5, 1.0)
counts = st.lists(st.integers(0, 1000), min_size=4, max_size=4)


def test_a_quantile_lies_within_its_bucket_in_proportion() -> None:
    durations = Durations.from_counts(BOUNDS, [5, 10, 0, 5])

    quantiles = [durations.quantile(share) for share in (0.25, 0.5, 0.75)]
    assert quantiles == [0.1, 0.1 + 0.4 * 0.5, 0.5]
    assert durations.quantile(0.99) == 1.0, "of what has no end, the beginning"
    assert Durations.from_counts(BOUNDS, [0, 0, 0, 0]).quantile(0.5) is None


@given(counts, counts, st.floats(0, 1))
def test_a_quantile_of_a_sum_lies_between_those_of_its_parts(
    some: list[int], others: list[int], share: float
) -> None:
    first, second = Durations.from_counts(BOUNDS, some), Durations.from_counts(BOUNDS, others)

    whole = (first + second).quantile(share)

    parts = [quantile for part in (first, second) if (quantile := part.quantile(share)) is not None]
    if parts and whole is not None:
        assert min(parts) - 1e-9 <= whole <= max(parts) + 1e-9
    assert (first + second).count == sum(some) + sum(others)


@given(counts)
def test_what_was_told_is_read_again(some: list[int]) -> None:
    durations = Durations.from_counts(BOUNDS, some)

    assert Durations.from_json(durations.to_json()) == durations


def test_what_another_release_tells_otherwise_is_left_out() -> None:
    assert Durations.from_json("no list") == Durations()
    assert Durations.from_json([[0.0, 0.1], "x", [1.0, None, 2]]) == Durations({(1.0, inf): 2})


@pytest.mark.parametrize(
    "odd",
    [
        *(["a", None, 1], [0.0, "b", 1], [0.0, 1.0, "c"], [nan, 1.0, 1], [0.0, inf, 1], [-1.0, 1.0, 1]),
        *([1.0, 0.5, 1], [0.0, 1.0, -1], [0.0, 1.0, 0], [0.0, 1.0, 10**400], [[], {}, None]),
    ],
    ids=lambda odd: repr(odd)[:30],
)
def test_what_is_no_bucket_is_left_out(odd: list[object]) -> None:
    assert Durations.from_json([odd, [0.0, 1.0, 2]]) == Durations({(0.0, 1.0): 2})
