"""Where drafts come from, what is kept, and when there are none."""

from array import array
from typing import Any

import pytest

from nightshift_engine import Request, SamplingParams
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation import speculator as module
from nightshift_engine.core.speculation.speculator import LEARNED_AT_ONCE_MAX, PROBE_STEPS, Speculator
from nightshift_engine.core.steps import Chunk, StepShape

PROMPT = [90, 91, 92, 93, 94, 95]
COPIED = [*PROMPT, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
ROOM = 100


def a_sequence(
    name: str,
    tokens: list[int],
    *,
    num_prompt: int | None = None,
    group: str | None = None,
    cache_salt: str = "",
    max_tokens: int = 50,
) -> Sequence:
    prompt = tokens[:num_prompt]
    request = Request(
        name,
        prompt,
        SamplingParams(max_tokens=max_tokens),
        output_token_ids=tokens[len(prompt) :],
        group=group,
        cache_salt=cache_salt,
    )
    sequence = Sequence(request, arrival=0, num_tokens_max=len(prompt) + max_tokens)
    sequence.num_computed_tokens = len(tokens) - 1
    return sequence


def drafted(speculator: Speculator, *sequences: Sequence, room: int = ROOM) -> dict[str, list[int]]:
    chunks = [Chunk(sequence, 1) for sequence in sequences]
    return {chunk.sequence.id: [row.token for row in rows] for chunk, rows in speculator.draft(chunks, room)}


def measured(speculator: Speculator, token_s: float = 0.0) -> Speculator:
    """One that knows the time of steps."""
    for number in range(50):
        tokens, rows = 1 + 7 * (number % 9), 1 + number % 7
        speculator.observe(StepShape(tokens, 10 * rows, rows), 0.010 + token_s * tokens)
    return speculator


def test_a_sequence_that_repeats_its_prompt_is_drafted_from_it() -> None:
    assert drafted(measured(Speculator()), a_sequence("a", COPIED))["a"][:4] == [4, 5, 6, 7]


def test_a_row_is_drafted_from_the_outputs_of_its_job() -> None:
    speculator = measured(Speculator())
    drafted(speculator, a_sequence("a", [*PROMPT, 1, 2, 3, 4, 5], num_prompt=6, group="job"))

    assert drafted(speculator, a_sequence("b", PROMPT, group="job"))["b"][:3] == [1, 2, 3]


class Forcing:
    """A grammar that forces some tokens, whatever came before."""

    def forced(self) -> list[int]:
        return [5, 6, 7, 8, 1, 2, 3]

    def ahead(self, tokens: list[int]) -> list[Any]:
        return [self] * len(tokens)


def test_what_may_follow_the_forced_tokens_is_drafted_after_them() -> None:
    sequence = a_sequence("a", [*COPIED, 4], num_prompt=6, max_tokens=24)
    guide: Any = Forcing()
    sequence.guide = guide

    assert drafted(measured(Speculator()), sequence)["a"] == [5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("other", [{"group": "job-2"}, {"group": "job", "cache_salt": "x"}, {"group": None}])
def test_nothing_passes_to_another_job_or_salt(other: dict[str, str]) -> None:
    speculator = measured(Speculator())
    drafted(speculator, a_sequence("a", [*PROMPT, 1, 2, 3, 4, 5], num_prompt=6, group="job"))

    assert drafted(speculator, a_sequence("b", PROMPT, **other)) == {}


def test_no_more_is_drafted_than_the_step_has_room_for_or_the_output_may_have() -> None:
    speculator = measured(Speculator())

    assert drafted(speculator, a_sequence("a", COPIED), a_sequence("b", COPIED), room=3) == {"a": [4, 5, 6]}
    assert drafted(speculator, a_sequence("a", COPIED, num_prompt=6, max_tokens=14)) == {"a": [4, 5]}
    assert drafted(speculator, a_sequence("a", COPIED, num_prompt=6, max_tokens=12)) == {}


def test_a_prompt_and_a_promised_token_have_no_draft() -> None:
    speculator, prompt, promised = measured(Speculator()), a_sequence("a", COPIED), a_sequence("b", COPIED)
    prompt.num_computed_tokens = 0
    promised.promise(0)
    chunks = [Chunk(prompt, len(COPIED)), Chunk(promised, 1)]

    assert speculator.draft(chunks, ROOM) == []


def test_what_is_not_accepted_is_drafted_no_longer_and_tried_again_once_in_a_while() -> None:
    speculator = measured(Speculator(), token_s=0.002)
    lengths = []
    for _ in range(PROBE_STEPS + 60):
        sequence = a_sequence("a", COPIED)
        tokens = drafted(speculator, sequence).get("a", [])
        lengths.append(len(tokens))
        if tokens:
            speculator.judge(sequence, len(tokens), 0, is_rejected=True)

    assert lengths[0] > 0
    assert set(lengths[30:60]) == {0}
    assert sum(length > 0 for length in lengths[60:]) == 1
    assert speculator.num_accepted_tokens == 0
    assert speculator.num_draft_tokens == sum(lengths)


def costly(speculator: Speculator) -> Speculator:
    """One for which the device waits a tenth of a step."""
    for _ in range(100):
        speculator.note_attempt(0.001)
    return speculator


def test_it_rests_beside_prompts_alone() -> None:
    speculator, prompt = costly(measured(Speculator())), a_sequence("a", COPIED)
    prompt.num_computed_tokens = 0

    assert speculator.draft([Chunk(prompt, 4)], ROOM) == []
    assert not speculator.is_due


def test_while_drafting_costs_much_and_finds_nothing_it_rests() -> None:
    speculator = costly(measured(Speculator()))

    assert drafted(speculator, a_sequence("a", PROMPT)) == {}
    rested = 0
    while not speculator.is_due:
        assert drafted(speculator, a_sequence("b", COPIED)) == {}
        rested += 1
    assert rested == pytest.approx(10, abs=1)
    assert drafted(speculator, a_sequence("c", COPIED))


def test_a_job_learns_no_more_of_an_output_at_once_than_a_step_has_time_for() -> None:
    speculator, output = measured(Speculator()), list(range(100, 300))
    drafted(speculator, a_sequence("a", PROMPT + output, num_prompt=6, group="job", max_tokens=300))

    assert drafted(speculator, a_sequence("b", PROMPT, group="job")) == {}
    rest = [*PROMPT, *output[-LEARNED_AT_ONCE_MAX - 6 : -LEARNED_AT_ONCE_MAX]]
    assert (
        drafted(speculator, a_sequence("c", rest, group="job"))["c"][:2] == output[-LEARNED_AT_ONCE_MAX:][:2]
    )


def test_the_job_that_drafted_longest_ago_is_forgotten_when_contexts_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CONTEXTS_MAX", 40)
    speculator = measured(Speculator())
    for number in range(6):
        output = [100 * number + place for place in range(15)]
        drafted(speculator, a_sequence(f"{number}", PROMPT + output, num_prompt=6, group=f"job-{number}"))

    assert drafted(speculator, a_sequence("old", PROMPT, group="job-0")) == {}
    assert drafted(speculator, a_sequence("new", PROMPT, group="job-5"))["new"][:2] == [500, 501]


def test_a_drafted_token_is_sampled_by_what_is_before_it() -> None:
    sequence = a_sequence("a", COPIED, num_prompt=6)
    penalised = Request(
        "p", PROMPT, SamplingParams(presence_penalty=1.0), output_token_ids=[1, 2, 3, 4, 1, 2, 3]
    )
    counted = Sequence(penalised, arrival=0, num_tokens_max=60)
    counted.num_computed_tokens = 12

    [(_, rows)] = measured(Speculator()).draft([Chunk(sequence, 1)], ROOM)
    [(_, of_counted)] = measured(Speculator()).draft([Chunk(counted, 1)], 2)

    assert [row.next_output_index for row in rows[:3]] == [12, 13, 14]
    assert {row.seed for row in rows} == {sequence.seed}
    assert [row.token for row in of_counted] == [4, 1]
    seen = dict(zip(of_counted[1].token_counts.ids.tolist(), of_counted[1].token_counts.counts, strict=True))
    assert seen == {1: 3.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert counted.token_counts.look_up(1)[1] == 2.0
    assert counted.token_ids == array("q", [*PROMPT, 1, 2, 3, 4, 1, 2, 3])
