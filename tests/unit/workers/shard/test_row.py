"""One row: its tokens over several tries and leases, and whether it may end in the time there is."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from nightshift.endpoints.texts.chat import Chat
from tests.unit.workers.scripted import chat_body
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import Progress
from workers.serving.model_server import ModelServer
from workers.shard.row import SLACK, ShardRow, hopeless_rows

NOW_S = 1000.0


def a_row(tokens: int, tokens_max: int | None, measured_tokens: int = 0, measured_s: float = 0.0) -> ShardRow:
    """A row that generated `measured_tokens` of its tokens in the last `measured_s`."""
    server = cast(ModelServer, SimpleNamespace(context_length=128))
    request = None if tokens_max is None else Chat().parse(chat_body("hello", max_tokens=tokens_max))
    row = ShardRow(0, "r0", None, request, server=server)
    row.begin(None, NOW_S - measured_s)
    if request is not None:
        row.add(Progress(token_ids=range(tokens)))
    row.heard_s, row.heard_tokens = (
        (NOW_S - measured_s, tokens - measured_tokens) if measured_s else (None, 0)
    )
    return row


def hopeless(rows: list[ShardRow], longest: int, left_s: float) -> list[int]:
    return [rows.index(row) for row in hopeless_rows(rows, longest, left_s, NOW_S)]


def begun(so_far: CarryOver | None = None, num_choices: int = 2) -> ShardRow:
    server = cast(ModelServer, SimpleNamespace(context_length=128, made_by_of=lambda model_id: None))
    row = ShardRow(0, "r0", None, Chat().parse(chat_body("hello", n=num_choices)), server=server)
    row.begin(so_far, NOW_S)
    return row


def choices(row: ShardRow) -> list[list[int]]:
    return [choice.token_ids for choice in row.carry_over.choices]


def test_a_row_that_begins_again_has_no_tokens_of_its_try_before() -> None:
    row = begun()
    row.add(Progress(token_ids=[1, 2]))
    row.heard(NOW_S)
    row.begin(None, NOW_S + 1)

    assert (choices(row), row.heard_s) == ([[], []], None)


def test_earlier_tokens_that_are_not_continued_are_dropped_from_all_choices() -> None:
    so_far = CarryOver([ChoiceSoFar([7, 8]), ChoiceSoFar([9])])
    continued, anew = begun(so_far), begun(so_far)
    assert (choices(anew), anew.saved) == ([[7, 8], [9]], 3)

    assert continued.add(Progress(token_ids=[7, 8, 5])) == 0
    assert anew.add(Progress(token_ids=[5])) == 3

    assert (choices(continued), continued.saved) == ([[7, 8, 5], [9]], 3)
    assert (choices(anew), anew.saved) == ([[5], []], 0)


SO = ChoiceSoFar(text=" So", tokens_without_ids=2)


def test_a_text_that_is_continued_takes_the_place_of_its_beginning() -> None:
    row = begun(CarryOver([SO]), 1)
    further = replace(SO, text=" So far", tokens_without_ids=4)

    assert row.add(Progress(so_far=SO)) == 0
    assert row.add(Progress(so_far=further)) == 0

    assert row.carry_over.choices[0] == further
    assert row.num_tokens == 4


@pytest.mark.parametrize(
    "progress",
    [
        Progress(so_far=ChoiceSoFar(text=" No", tokens_without_ids=3)),
        Progress(so_far=ChoiceSoFar()),
        Progress(token_ids=[5]),
    ],
    ids=["another text", "none", "an engine of ours"],
)
@pytest.mark.parametrize("is_told", [False, True])
def test_a_text_that_is_not_continued_is_dropped(progress: Progress, *, is_told: bool) -> None:
    row = begun(CarryOver([SO]), 1)
    if is_told and progress.so_far is not None:
        row.add(Progress(so_far=SO))

    assert row.add(progress) == SO.num_tokens


def test_a_row_is_given_up_that_needs_more_than_the_time_with_some_slack() -> None:
    at_ten_per_s = [a_row(100, tokens_max, 100, 10.0) for tokens_max in (700, 701)]

    assert hopeless(at_ten_per_s, 0, left_s=60 / SLACK) == [1]


def test_a_row_is_taken_to_end_like_the_longest_that_has_ended() -> None:
    row, longer = a_row(100, 100_000, 100, 10.0), a_row(200, 100_000, 100, 10.0)

    assert [hopeless([row], longest, left_s=30) for longest in (0, 150, 5000)] == [[0], [], [0]]
    assert hopeless([longer], 150, left_s=30) == [0], "it has more than any other had"


def test_a_row_that_has_not_begun_may_be_as_fast_as_the_fastest() -> None:
    fast, slow = a_row(50, 60, 50, 1.0), a_row(10, 5000, 10, 10.0)

    assert hopeless([fast, slow, a_row(0, 1000), a_row(0, 9000)], 0, left_s=30) == [1, 3]


def test_without_a_measured_speed_or_tokens_to_come_no_row_is_given_up() -> None:
    assert hopeless([a_row(0, 10**9), a_row(40, 10**9, 0, 0.5)], 0, left_s=1) == []
    assert hopeless([a_row(0, None), a_row(5, 10**9, 5, 1.0)], 0, left_s=1) == [1]
