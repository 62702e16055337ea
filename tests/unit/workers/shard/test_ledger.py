"""The ledger of one lease: which changes it takes, which it refuses, and what it says afterwards."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightshift.bulk.results.row_results import RowResult
from nightshift.endpoints.texts.chat import Chat
from nightshift.jobs import Usage
from tests.helpers.fakes import a_row_result
from tests.unit.workers.scripted import ManualClock, chat_body
from tests.unit.workers.shard.helpers import CONFIG
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import Progress
from workers.serving.model_server import ModelServer
from workers.shard.checkpoints import Checkpoint
from workers.shard.ledger import Ledger
from workers.shard.row import ShardRow


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> Ledger:
    config = replace(CONFIG, segment_rows=2, segment_interval_s=10, carry_over_interval_s=60)
    return Ledger(config, clock_s=clock)


def test_the_rows_that_began_first_are_the_oldest(ledger: Ledger, clock: ManualClock) -> None:
    assert ledger.oldest_age_s is None
    for row in (7, 3):
        ledger.begin(admitted(row))
        clock.advance(5)

    assert ledger.oldest_age_s == 10
    assert [row.number for row in ledger.begun_before(10)] == [7]
    assert [row.number for row in ledger.begun_before(5)] == [7, 3]
    assert ledger.begun_before(11) == []

    ledger.interrupt(7)
    ledger.begin(admitted(7, tries=2))
    assert [row.number for row in ledger.begun_before(5)] == [3]


def test_a_row_that_the_engine_broke_off_continues_from_its_tokens(ledger: Ledger) -> None:
    ledger.begin(admitted(0))
    ledger.progress(0, tokens(5, 6))
    ledger.interrupt(0)

    left = ledger.earlier(0)
    assert left is not None
    assert left.choices[0].token_ids == [5, 6]
    ledger.begin(admitted(0, tries=2))
    ledger.progress(0, tokens(5, 6, 7))  # it repeats them first
    checkpoint = taken(ledger, of_everything=True)
    assert checkpoint.unfinished is not None
    assert checkpoint.unfinished[0].choices[0].token_ids == [5, 6, 7]
    assert (checkpoint.tokens_covered, checkpoint.tokens_redone) == (3, 0)


def test_a_checkpoint_is_due_after_enough_results_or_some_time_after_the_first(
    ledger: Ledger, clock: ManualClock
) -> None:
    assert (ledger.is_due, ledger.due_in_s) == (False, None)
    ledger.finish(result(0))
    assert (ledger.is_due, ledger.due_in_s) == (False, 10)
    clock.advance(10)
    assert ledger.is_due
    taken(ledger)
    assert not ledger.is_due

    ledger.finish(result(1))
    ledger.finish(result(2))

    assert ledger.is_due


def test_a_checkpoint_is_due_once_its_results_keep_much_of_their_input(
    clock: ManualClock,
) -> None:
    ledger = Ledger(replace(CONFIG, held_chars_max=30), clock_s=clock)
    for row, is_due in ((0, False), (1, True)):
        ledger.finish(replace(result(row), kept='{"a":"0123456789"}'))
        assert ledger.is_due == is_due

    taken(ledger)
    ledger.finish(replace(result(2), kept='{"a":"0123456789"}'))
    assert not ledger.is_due


def test_tokens_are_at_risk_until_the_checkpoint_that_has_them_is_listed(ledger: Ledger) -> None:
    ledger.begin(admitted(0))
    ledger.progress(0, tokens(1, 2, 3))
    ledger.finish(result(0))
    checkpoint = taken(ledger)
    assert (ledger.unlisted, ledger.tokens_at_risk()) == (1, 3)

    ledger.listed(checkpoint)

    assert (ledger.unlisted, ledger.tokens_at_risk()) == (0, 0)


def test_the_last_checkpoint_has_the_tokens_of_rows_that_have_just_begun(ledger: Ledger) -> None:
    ledger.begin(admitted(0))
    ledger.progress(0, tokens(1, 2))

    unfinished = taken(ledger, of_everything=True).unfinished

    assert unfinished is not None
    assert [choice.token_ids for choice in unfinished[0].choices] == [[1, 2]]


def test_a_row_continues_what_an_earlier_lease_left_and_that_is_saved_until_it_does(ledger: Ledger) -> None:
    left = {row: CarryOver([ChoiceSoFar([7, 8])]) for row in (0, 1)}
    ledger.resume(left)
    assert ledger.earlier(0) == left[0]
    ledger.begin(admitted(0))
    assert ledger.earlier(0) is None

    ledger.progress(0, tokens(7, 8, 9))

    unfinished = taken(ledger, of_everything=True).unfinished
    assert unfinished is not None
    assert [unfinished[row].choices[0].token_ids for row in (0, 1)] == [[7, 8, 9], [7, 8]]


def test_a_text_that_is_made_again_is_counted_as_redone_and_one_that_goes_on_is_not(ledger: Ledger) -> None:
    so_far = ChoiceSoFar(text=" So", tokens_without_ids=2)
    ledger.resume({row: CarryOver([so_far]) for row in (0, 1)})
    further = [ChoiceSoFar(text=text, tokens_without_ids=5) for text in (" So far", " Another")]
    for row, text in enumerate(further):
        ledger.begin(admitted(row))
        ledger.progress(row, Progress(so_far=text))

    checkpoint = taken(ledger, of_everything=True)

    assert checkpoint.tokens_redone == 2
    assert ledger.tokens_at_risk() == 3 + 5
    assert checkpoint.unfinished is not None
    assert [checkpoint.unfinished[row].choices[0] for row in (0, 1)] == further


def admitted(row: int, tries: int = 1) -> ShardRow:
    server = cast(ModelServer, SimpleNamespace(made_by_of=lambda model_id: None, context_length=128))
    request = Chat().parse(chat_body("hello"))
    return ShardRow(row, f"r{row}", None, request, server=server, tries=tries)


def result(row: int) -> RowResult:
    return a_row_result(row, f"r{row}", usage=Usage())


def tokens(*token_ids: int) -> Progress:
    return Progress("", list(token_ids))


def taken(ledger: Ledger, **how: Any) -> Checkpoint:
    checkpoint = ledger.take_checkpoint(None, **how)
    assert checkpoint is not None
    return checkpoint


def test_results_of_quick_rows_wait_for_others_but_not_for_too_many() -> None:
    clock = ManualClock()
    spaced = replace(CONFIG, segment_rows=2, segment_spacing_s=0.25, segment_rows_max=4)
    ledger = Ledger(spaced, clock_s=clock)
    for row in range(3):
        ledger.finish(result(row))

    assert (ledger.is_due, ledger.due_in_s) == (False, 0.25)
    clock.advance(0.25)
    assert ledger.is_due
    clock.advance(-0.25)
    ledger.finish(result(3))
    assert ledger.is_due

    unspaced = Ledger(spaced, is_spaced=False, clock_s=clock)
    for row in range(2):
        unspaced.finish(result(row))
    assert unspaced.is_due
