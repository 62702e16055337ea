"""Sampling: the right distribution, from nothing but seed and position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from workers.engine import Request, SamplingParams
from workers.engine import sampler as sampler_module
from workers.engine.batching.sequence import Sequence
from workers.engine.sampler import Sampler, uniform

VOCAB = 24
EOS = 23


def sequence(prompt: tuple[int, ...] = (1, 2), output: tuple[int, ...] = (), **sampling: Any) -> Sequence:
    params = SamplingParams(**({"seed": 7} | sampling))
    return Sequence(Request("r", prompt, params, output_token_ids=output), arrival=0, num_tokens_max=10_000)


def sample(logits: Tensor, *sequences: Sequence) -> list[int | None]:
    return Sampler([EOS]).sample(logits.clone(), sequences)


def draws(logits: Tensor, count: int, **sampling: Any) -> list[int]:
    """`count` draws from one distribution, at the seeds 0 to count - 1."""
    sequences = [sequence(**(sampling | {"seed": seed})) for seed in range(count)]
    tokens = sample(logits.expand(count, -1), *sequences)
    assert None not in tokens
    return [token for token in tokens if token is not None]


def chi_square(tokens: list[int], probs: Tensor) -> tuple[float, int]:
    """Statistic and degrees of freedom against expected counts."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probs)).double()
    possible = probs > 0
    assert counts[~possible].sum() == 0, "drew a token of probability zero"
    expected = probs[possible].double() * len(tokens)
    return float(((counts[possible] - expected) ** 2 / expected).sum()), int(possible.sum()) - 1


def assert_distributed(tokens: list[int], probs: Tensor, seed: int) -> None:
    statistic, freedom = chi_square(tokens, probs)
    # Wilson-Hilferty: the cube root of chi-square is close to normal. 3.7 sigma is one false alarm in 10,000.
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    print(f"{seed=} chi-square {statistic:.1f} with {freedom} degrees of freedom, z={z:.2f}")
    assert z < 3.7


@pytest.fixture
def logits() -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(VOCAB, generator=generator) * 2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax_at_every_temperature(logits: Tensor, temperature: float) -> None:
    tokens = draws(logits, 20_000, temperature=temperature)
    assert_distributed(tokens, torch.softmax(logits / temperature, -1), seed=11)


def test_consecutive_positions_of_one_seed_are_as_random_as_different_seeds(logits: Tensor) -> None:
    numbers = uniform([5] * 50_000, range(50_000))
    counts = torch.histc(torch.from_numpy(numbers), bins=50, min=0, max=1)
    assert_distributed(
        [bin for bin, n in enumerate(counts.int().tolist()) for _ in range(n)], torch.full((50,), 0.02), 5
    )
    pairs = torch.from_numpy(numbers).view(-1, 2)
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 0.03


def test_a_draw_depends_on_seed_and_position_only(logits: Tensor) -> None:
    many = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(3))
    many[3] = logits
    others = [sequence(seed=seed, output=(1,) * seed) for seed in range(5)]
    others[3] = sequence(seed=42, output=(9, 9, 9))

    alone = sample(logits[None], sequence(seed=42, output=(5, 6, 7), prompt=(8,)))

    assert sample(many, *others)[3] == alone[0]
    assert uniform([42], [3]) == uniform([42], [3])
    assert uniform([42], [3]) != uniform([42], [4])
    assert uniform([42], [3]) != uniform([43], [3])
    assert uniform([-1], [0]) != uniform([1], [0])


def test_without_a_seed_the_request_id_decides() -> None:
    params = SamplingParams()
    first, again, other = (
        Sequence(Request(id, (1,), params), arrival=0, num_tokens_max=9) for id in ("a", "a", "b")
    )

    assert first.seed == again.seed != other.seed


def test_greedy_takes_the_lowest_id_on_a_tie() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [4, 9, 17]] = 3.0

    assert sample(logits, sequence(temperature=0)) == [4]


def test_greedy_and_random_rows_share_a_batch(logits: Tensor) -> None:
    rows = logits.expand(3, -1)
    mixed = sample(rows, sequence(temperature=0), sequence(seed=1), sequence(temperature=0))

    assert mixed == [int(logits.argmax()), *sample(logits[None], sequence(seed=1)), int(logits.argmax())]


FILTERS: list[tuple[dict[str, Any], LogitsProcessor]] = [
    ({"top_k": 5}, TopKLogitsWarper(5)),
    ({"top_k": 1}, TopKLogitsWarper(1)),
    ({"top_k": 500}, TopKLogitsWarper(500)),
    ({"top_p": 0.7}, TopPLogitsWarper(0.7)),
    ({"top_p": 0.05}, TopPLogitsWarper(0.05)),
    ({"min_p": 0.1}, MinPLogitsWarper(0.1)),
]


@pytest.mark.parametrize(("sampling", "processor"), FILTERS, ids=[str(sampling) for sampling, _ in FILTERS])
def test_filters_keep_what_transformers_keeps(
    logits: Tensor, sampling: dict[str, Any], processor: LogitsProcessor
) -> None:
    expected = torch.softmax(processor(torch.tensor([[0]]), logits[None].clone())[0], -1)
    tokens = draws(logits, 4_000, **sampling)

    assert set(tokens) <= {int(token) for token in expected.nonzero()}
    if int((expected > 0).sum()) > 1:
        assert_distributed(tokens, expected, seed=11)


def test_top_p_sorts_the_whole_vocabulary_when_the_likeliest_are_not_enough(
    logits: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = draws(logits, 500, top_p=0.9)
    monkeypatch.setattr(sampler_module, "TOP_P_CANDIDATES", 2)

    assert draws(logits, 500, top_p=0.9) == wanted


def test_rows_with_different_filters_do_not_touch_each_other(logits: Tensor) -> None:
    kinds: list[dict[str, Any]] = [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}, {}, {"temperature": 3.0}]
    together = sample(logits.expand(5, -1), *(sequence(seed=9, **kind) for kind in kinds))

    assert together == [sample(logits[None], sequence(seed=9, **kind))[0] for kind in kinds]


def test_repetition_penalty_equals_that_of_transformers(logits: Tensor) -> None:
    prompt, output = (3, 4, 5), (6, 7, 7)
    processor = RepetitionPenaltyLogitsProcessor(1.8)
    expected = processor(torch.tensor([[*prompt, *output]]), logits[None].clone())[0]
    adjusted = logits[None].clone()
    row = sequence(prompt, output, temperature=0, repetition_penalty=1.8)
    Sampler([EOS]).sample(adjusted, [row])

    torch.testing.assert_close(adjusted[0], expected)


def test_presence_and_frequency_count_the_output_only(logits: Tensor) -> None:
    adjusted = logits[None].clone()
    row = sequence((3, 6), (6, 7), temperature=0, presence_penalty=0.5, frequency_penalty=0.25)
    row.append(7)
    Sampler([EOS]).sample(adjusted, [row])

    difference = logits - adjusted[0]
    assert difference[6].item() == pytest.approx(0.75)
    assert difference[7].item() == pytest.approx(1.0)
    assert difference[3].item() == 0


def test_logit_bias_moves_the_argmax(logits: Tensor) -> None:
    worst = int(logits.argmin())
    assert sample(logits[None], sequence(temperature=0, logit_bias={worst: 100.0})) == [worst]


def test_an_end_of_sequence_is_not_drawn_before_min_tokens(logits: Tensor) -> None:
    logits[EOS], logits[5] = 50.0, 40.0
    params: dict[str, Any] = {"temperature": 0, "min_tokens": 2, "stop_token_ids": (5,)}

    early = sample(logits[None], sequence(output=(1,), **params))
    late = sample(logits[None], sequence(output=(1, 1), **params))

    assert early[0] not in (EOS, 5)
    assert late == [EOS]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_usable_numbers_gets_no_token_and_spares_its_neighbours(
    logits: Tensor, poison: float, temperature: float
) -> None:
    rows = logits.repeat(2, 1)
    rows[0, 3] = poison

    tokens = sample(rows, sequence(temperature=temperature), sequence(temperature=temperature))

    assert tokens[0] is None
    assert tokens[1:] == sample(logits[None], sequence(temperature=temperature))


def test_the_largest_possible_number_still_picks_a_possible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr(sampler_module, "uniform", lambda seeds, indices: np.array([1 - 2**-53]))
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, [2, 3]] = 0.0

    assert sample(logits, sequence()) == [3]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-40, 1e-45, 5e-324])
def test_next_to_no_temperature_draws_the_likeliest_token(temperature: float) -> None:
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(3)) * 50
    rows = [sequence(temperature=temperature, seed=seed) for seed in range(8)]

    assert sample(logits, *rows) == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("penalty", [0.01, 100.0])
@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1.0])
def test_the_strongest_penalties_still_give_a_token_of_the_vocabulary(
    penalty: float, temperature: float
) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(4)) * 1000
    rows = [
        sequence(tuple(range(VOCAB)), (5, 5), temperature=temperature, repetition_penalty=penalty, seed=n)
        for n in range(4)
    ]

    tokens = sample(logits, *rows)

    assert all(token is not None and 0 <= token < VOCAB for token in tokens)
