"""Of rows in flight, those that need far more time than there is are told from those that may end."""

import pytest

from workers.shard.pace import SLACK, Pace, hopeless_rows


def test_a_row_is_given_up_that_needs_more_than_the_time_with_some_slack() -> None:
    at_ten_per_s = {number: Pace(100, tokens_max, 100, 10.0) for number, tokens_max in enumerate((700, 701))}

    assert hopeless_rows(at_ten_per_s, 0, left_s=60 / SLACK) == [1]


@pytest.mark.parametrize(
    ("tokens", "longest", "is_hopeless"),
    [
        (100, 0, True),  # no row has ended
        (100, 150, False),  # as others, it ends after 150 tokens
        (100, 5000, True),
        (200, 150, True),  # it has more than any other had
    ],
)
def test_a_row_is_taken_to_end_like_the_longest_that_has_ended(
    tokens: int, longest: int, is_hopeless: bool
) -> None:
    paces = {7: Pace(tokens, 100_000, 100, 10.0)}

    assert hopeless_rows(paces, longest, left_s=30) == ([7] if is_hopeless else [])


def test_a_row_that_has_not_begun_may_be_as_fast_as_the_fastest() -> None:
    fast, slow, waiting, long = Pace(50, 60, 50, 1.0), Pace(10, 5000, 10, 10.0), Pace(0, 1000), Pace(0, 9000)

    assert hopeless_rows({0: fast, 1: slow, 2: waiting, 3: long}, 0, left_s=30) == [1, 3]


def test_without_a_measured_speed_no_row_is_given_up() -> None:
    assert hopeless_rows({0: Pace(0, 10**9), 1: Pace(40, 10**9, 0, 0.5)}, 0, left_s=1) == []
    assert hopeless_rows({}, 0, left_s=1) == []


def test_a_row_that_generates_nothing_is_waited_for() -> None:
    assert hopeless_rows({0: Pace(0, None), 1: Pace(5, 10**9, 5, 1.0)}, 0, left_s=1) == [1]
