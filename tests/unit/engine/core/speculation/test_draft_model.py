"""A draft model drafts where that pays: by what is accepted, its own time, and what it has to read before."""

from collections.abc import Sequence as Seq

import pytest

from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation.rows import DraftedRow, drafted_rows
from nightshift_engine.core.speculation.speculator import (
    DRAFT_TOKENS_MAX,
    MODEL_SEQUENCES_MAX,
    PROBE_STEPS,
    Speculator,
)
from nightshift_engine.core.steps import StepShape, StepTimeModel
from tests.unit.engine.core.speculation.test_speculator import COPIED, PROMPT, a_sequence, drafted, measured

MADE = 77
"""The token that the model drafts."""


class FakeModel:
    """Drafts one token over and over. It has `num_unread` tokens to read."""

    def __init__(self, pass_s: float, num_unread: int = 1) -> None:
        self.times, self.seconds, self.unread = StepTimeModel(), 0.0, num_unread
        self.num_asked = 0
        for tokens in range(1, 40):
            self.times.observe(StepShape(tokens, 0, 1 + tokens % 3), pass_s + 0.0001 * tokens)

    def num_unread(self, sequence: Sequence) -> int:
        return self.unread

    def draft(self, wanted: Seq[tuple[Sequence, Seq[int], int]]) -> list[list[DraftedRow]]:
        self.num_asked += 1
        return [
            drafted_rows(sequence, [*tokens, *[MADE] * (length - len(tokens))])
            for sequence, tokens, length in wanted
        ]


def with_model(pass_s: float, num_unread: int = 1) -> Speculator:
    """A step takes 0.01 seconds, a drafted token next to nothing."""
    return measured(Speculator(FakeModel(pass_s, num_unread)))


def reject(speculator: Speculator, times: int) -> None:
    """Has `times` drafts of the model turn out wrong."""
    for _ in range(times):
        sequence = a_sequence("wrong", PROMPT)
        if tokens := drafted(speculator, sequence).get("wrong"):
            speculator.judge(sequence, len(tokens), 0, is_rejected=True)


def test_it_drafts_where_nothing_else_does_and_as_long_as_a_pass_is_worth_its_time() -> None:
    [cheap] = drafted(with_model(0.0), a_sequence("a", PROMPT)).values()
    [dear] = drafted(with_model(0.003), a_sequence("a", PROMPT)).values()

    assert set(cheap) == {MADE}
    assert 0 < len(dear) < len(cheap) <= DRAFT_TOKENS_MAX
    assert drafted(with_model(0.02), a_sequence("a", PROMPT)) == {}


def test_with_more_sequences_it_is_not_even_asked_and_others_draft_as_without_it() -> None:
    model = FakeModel(0.0)
    speculator = measured(Speculator(model))
    sequences = [a_sequence(f"{n}", COPIED if n else PROMPT) for n in range(MODEL_SEQUENCES_MAX + 1)]

    assert drafted(speculator, *sequences) == drafted(measured(Speculator()), *sequences) != {}
    assert model.num_asked == 0
    assert "0" in drafted(speculator, *sequences[:-1])


def test_what_the_passes_took_is_counted_by_token_and_no_second_time() -> None:
    speculator, model = with_model(0.0), FakeModel(0.0)
    speculator._model, model.seconds = model, 0.03
    drafted(speculator, a_sequence("a", PROMPT))
    speculator.note_attempt(0.03)

    assert speculator._attempt_s == 0.0


def test_a_copy_is_drafted_without_it_unless_less_is_expected() -> None:
    sequence = a_sequence("a", COPIED)

    assert drafted(with_model(0.006), sequence)["a"][:3] == [4, 5, 6]
    assert set(drafted(with_model(0.0), sequence)["a"]) == {MADE}


def test_it_is_given_up_where_it_is_mostly_wrong_and_tried_again_once_in_a_while() -> None:
    speculator = with_model(0.003)
    reject(speculator, 40)
    num_drafts = speculator.num_drafts
    reject(speculator, PROBE_STEPS)

    assert 0 < num_drafts < 40
    assert speculator.num_drafts == num_drafts + 1


def test_nothing_passes_to_another_job_of_how_often_it_was_right() -> None:
    speculator = with_model(0.003)
    reject(speculator, 40)

    assert drafted(speculator, a_sequence("a", PROMPT)) == {}
    assert drafted(speculator, a_sequence("b", PROMPT, group="job"))


@pytest.mark.parametrize(("num_output_tokens", "is_read"), [(1, False), (10, False), (40, True)])
def test_a_prompt_is_read_once_drafts_would_have_saved_that_time_on_the_output(
    num_output_tokens: int, is_read: bool
) -> None:
    prompt = [200 + n for n in range(50)]
    sequence = a_sequence("a", [*prompt, *range(num_output_tokens)], num_prompt=50, max_tokens=90)

    assert bool(drafted(with_model(0.001, num_unread=2000), sequence)) is is_read
