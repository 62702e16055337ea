"""A draft model drafts where that pays: by what is accepted, its own time, and what it has to read before."""

from collections.abc import Sequence as Seq

import pytest

from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation.rows import DraftedRow, drafted_rows
from nightshift_engine.core.speculation.speculator import DRAFT_TOKENS_MAX, PROBE_STEPS, Speculator
from nightshift_engine.core.steps import StepShape, StepTimeModel
from tests.unit.engine.core.speculation.test_speculator import COPIED, PROMPT, a_sequence, drafted, measured

MADE = 77
"""The token that the model drafts."""


class FakeModel:
    """Drafts one token over and over. It has `num_unread` tokens to read."""

    def __init__(self, pass_s: float, num_unread: int = 1) -> None:
        self.times, self.seconds, self.unread = StepTimeModel(), 0.0, num_unread
        for tokens in range(1, 40):
            self.times.observe(StepShape(tokens, 0, 1 + tokens % 3), pass_s + 0.0001 * tokens)

    def num_unread(self, sequence: Sequence) -> int:
        return self.unread

    def draft(self, wanted: Seq[tuple[Sequence, Seq[int], int]]) -> list[list[DraftedRow]]:
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


def test_it_does_not_draft_where_steps_take_as_long_as_they_have_sequences() -> None:
    speculator = Speculator(FakeModel(0.0))
    for number in range(100):
        tokens = 16 + (number % 8 if number >= 60 else 0)  # a batch stays as it is, then drafts tell
        speculator.observe(StepShape(tokens, len(PROMPT) * 16, 16), 0.001 * tokens)

    assert drafted(speculator, *(a_sequence(f"{n}", PROMPT) for n in range(16)), room=1000) == {}


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
