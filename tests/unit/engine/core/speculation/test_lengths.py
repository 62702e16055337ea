"""Drafts are as long as they pay, by what was accepted and how long steps took."""

import itertools
import random

import pytest

from nightshift_engine.core.speculation.lengths import (
    Acceptance,
    StepCost,
    draft_lengths,
    steps_to_rest,
)
from nightshift_engine.core.steps import StepShape, StepTimeModel

CHEAP = StepCost(step_s=0.010, token_s=0.0002, attempt_s=0.00005)
"""A step that reads weights: more tokens hardly matter."""
FULL = StepCost(step_s=0.064, token_s=0.001, attempt_s=0.0003)
"""A step of 64 sequences that is bound by arithmetic: a drafted token costs what a sequence does."""


def test_likely_tokens_are_drafted_where_steps_read_weights() -> None:
    assert draft_lengths([[0.9] * 16], 1, CHEAP) == [16]
    assert 0 < draft_lengths([[0.5] * 16], 1, CHEAP)[0] < 8


def test_nothing_is_drafted_where_a_token_costs_as_much_as_a_sequence() -> None:
    assert draft_lengths([[0.9] * 16] * 64, 64, FULL) == [0] * 64


def test_a_draft_that_is_sure_pays_for_itself_but_not_for_the_drafting_of_others() -> None:
    sure = [[0.999] * 16] * 4

    assert draft_lengths(sure, 4, StepCost(0.010, 0.0020, 0.0)) == [16] * 4
    assert draft_lengths(sure, 4, StepCost(0.010, 0.0020, 1.0)) == [0] * 4


def test_no_draft_is_an_empty_list() -> None:
    assert draft_lengths([], 3, CHEAP) == []


def rate(shares: list[list[float]], lengths: list[int], rows: int, cost: StepCost) -> float:
    gain = sum(
        sum(itertools.accumulate(draft[:n], lambda a, b: a * b))
        for draft, n in zip(shares, lengths, strict=True)
    )
    return (rows + gain) / (cost.step_s + sum(lengths) * cost.token_s + cost.attempt_s * any(lengths))


def test_random_drafts_are_near_the_best_lengths_and_never_slower_than_none() -> None:
    chance = random.Random(5)
    for _ in range(200):
        shares = [[chance.uniform(0.1, 1.0) for _ in range(4)] for _ in range(chance.randint(1, 3))]
        rows = len(shares) + chance.randint(0, 8)
        cost = StepCost(0.01, chance.choice([0.0, 0.0002, 0.001, 0.005]), chance.choice([0.0, 0.0005]))
        every = itertools.product(range(5), repeat=len(shares))
        best = max(rate(shares, list(lengths), rows, cost) for lengths in every)

        chosen = rate(shares, draft_lengths(shares, rows, cost), rows, cost)

        assert chosen >= rows / cost.step_s
        assert chosen >= 0.85 * best


def test_acceptance_follows_what_happens_lately() -> None:
    acceptance = Acceptance([0.5, 0.9])
    for _ in range(300):
        acceptance.note(0, is_hit=True)
    assert acceptance.shares[0] > 0.95
    for _ in range(100):
        acceptance.note(0, is_hit=False)

    assert acceptance.shares[0] < 0.25
    assert acceptance.shares[1] == 0.9


def test_the_cost_of_a_step_is_that_of_steps_measured() -> None:
    times = StepTimeModel()
    assert StepCost.predict(times, StepShape(1, 100, 1), 0.0) is None
    chance = random.Random(1)
    for _ in range(400):
        tokens, rows = chance.randint(1, 60), chance.randint(1, 8)
        times.observe(StepShape(tokens, 100 * rows, rows), 0.010 + 0.0004 * tokens)

    cost = StepCost.predict(times, StepShape(4, 400, 4), 0.001)

    assert cost is not None
    assert cost.step_s == pytest.approx(0.0116, rel=0.1)
    assert cost.token_s == pytest.approx(0.0004, rel=0.1)
    assert cost.attempt_s == 0.001


def test_drafting_that_finds_nothing_rests_until_it_took_its_share_of_the_time() -> None:
    assert steps_to_rest(0.001, 0.010, share=0.01, most=64) == 10
    assert steps_to_rest(0.00005, 0.010, share=0.01, most=64) == 0
    assert steps_to_rest(1.0, 0.010, share=0.01, most=64) == 64
    assert steps_to_rest(1.0, 0.0, share=0.01, most=64) == 0
