"""Sampling: the right distribution, from nothing but seed and position."""

import math
import random
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
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

from nightshift_engine import Request, SamplingParams, TokenLogprobs
from nightshift_engine.core.sequence import Sequence, TokenCounts
from nightshift_engine.execution.device.devices import to_device
from nightshift_engine.sampling import random_rows as draws_module
from nightshift_engine.sampling import random_rows as random_rows_module
from nightshift_engine.sampling.adjustments import Adjustments
from nightshift_engine.sampling.random_rows import seeds_column
from nightshift_engine.sampling.random_rows import uniform as uniform_of
from nightshift_engine.sampling.sampler import Sampler
from tests.unit.engine.tiny.cases import mostly_exhaustive

VOCAB = 24
EOS = 23


def sequence(prompt: tuple[int, ...] = (1, 2), output: tuple[int, ...] = (), **sampling: Any) -> Sequence:
    params = SamplingParams(**({"seed": 7} | sampling))
    return Sequence(Request("r", prompt, params, output_token_ids=output), arrival=0, num_tokens_max=10_000)


def sample(logits: Tensor, *sequences: Sequence) -> list[int | None]:
    return Sampler([EOS]).sample(logits.clone(), list(sequences)).tokens


def adjusted(logits: Tensor, row: Sequence) -> Tensor:
    """The logits of one row as its parameters change them."""
    changed, adjustments = logits[None].clone(), Adjustments([row], [EOS], VOCAB)
    columns = to_device(adjustments.arrays() | adjustments.step_arrays(), changed.device)
    adjustments.start(columns)
    adjustments.apply(changed, columns)
    return changed[0]


def uniform(seeds: list[int], indices: Seq[int]) -> list[float]:
    return uniform_of(seeds_column(seeds), indices).tolist()  # type: ignore[no-any-return]


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


@pytest.mark.parametrize("temperature", mostly_exhaustive([0.5, 1.0, 1.7], default=[1.7]))
def test_draws_follow_the_softmax_at_every_temperature(logits: Tensor, temperature: float) -> None:
    tokens = draws(logits, 8_000, temperature=temperature)
    assert_distributed(tokens, torch.softmax(logits / temperature, -1), seed=11)


def test_consecutive_positions_of_one_seed_are_as_random_as_different_seeds(logits: Tensor) -> None:
    numbers = uniform([5] * 50_000, range(50_000))
    counts = torch.histc(torch.tensor(numbers), bins=50, min=0, max=1)
    assert_distributed(
        [bin for bin, n in enumerate(counts.int().tolist()) for _ in range(n)], torch.full((50,), 0.02), 5
    )
    pairs = torch.tensor(numbers).view(-1, 2)
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
    tokens = draws(logits, 2_000, **sampling)

    assert set(tokens) <= {int(token) for token in expected.nonzero()}
    if int((expected > 0).sum()) > 1:
        assert_distributed(tokens, expected, seed=11)


def test_repetition_penalty_equals_that_of_transformers(logits: Tensor) -> None:
    prompt, output = (3, 4, 5), (6, 7, 7)
    processor = RepetitionPenaltyLogitsProcessor(1.8)
    expected = processor(torch.tensor([[*prompt, *output]]), logits[None].clone())[0]
    row = sequence(prompt, output, temperature=0, repetition_penalty=1.8)

    torch.testing.assert_close(adjusted(logits, row), expected)


def test_presence_and_frequency_count_the_output_only(logits: Tensor) -> None:
    row = sequence((3, 6), (6, 7), temperature=0, presence_penalty=0.5, frequency_penalty=0.25)
    row.append(7)

    difference = logits - adjusted(logits, row)
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


@pytest.mark.parametrize(("poison", "temperature"), [(float("nan"), 1.0), (float("inf"), 0.0)])
def test_a_row_without_usable_numbers_gets_no_token_and_leaves_other_rows_alone(
    logits: Tensor, poison: float, temperature: float
) -> None:
    rows, row = logits.repeat(2, 1), sequence(temperature=temperature, logprobs=1)
    rows[0, 3] = poison

    sampled = Sampler([EOS]).sample(rows, [row, row])

    assert sampled.tokens == [None, *sample(logits[None], row)]
    assert sampled.logprobs[1] == logprobs_of(logits[None], row)[0]


def test_the_largest_possible_number_still_picks_a_possible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_rows_module, "uniform", lambda seeds, indices: np.array([1 - 2**-53]))
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, [2, 3]] = 0.0

    assert sample(logits, sequence()) == [3]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-40, 1e-45, 5e-324])
def test_next_to_no_temperature_draws_the_likeliest_token(temperature: float) -> None:
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(3)) * 50
    rows = [sequence(temperature=temperature, seed=seed) for seed in range(8)]

    assert sample(logits, *rows) == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize(
    "others", [{}, {"top_k": 2}, {"logit_bias": {9: 100.0}}, {"repetition_penalty": 2.0}]
)
def test_only_allowed_tokens_are_drawn_however_often_they_are_listed(
    logits: Tensor, others: dict[str, Any]
) -> None:
    once, twice = (draws(logits, 200, allowed_token_ids=ids, **others) for ids in ((3, 9, 14), (14, 3, 9, 3)))

    assert set(once) <= {3, 9, 14}
    assert once == twice
    assert draws(logits, 20, allowed_token_ids=range(VOCAB)) == draws(logits, 20)


def test_an_allowed_end_waits_for_min_tokens(logits: Tensor) -> None:
    logits[EOS] = 50.0
    allowed = {"allowed_token_ids": (4, EOS), "min_tokens": 1, "temperature": 0.0}

    assert sample(logits.expand(2, -1), sequence(**allowed), sequence(output=(4,), **allowed)) == [4, EOS]


def test_each_row_has_its_own_allowed_tokens(logits: Tensor) -> None:
    rows = [sequence(temperature=0.0, allowed_token_ids=(token,)) for token in (5, 20)]

    assert sample(logits.expand(3, -1), *rows, sequence(temperature=0.0)) == [5, 20, int(logits.argmax())]


# Log-probabilities


def logprobs_of(logits: Tensor, *sequences: Sequence) -> dict[int, TokenLogprobs]:
    return Sampler([EOS]).sample(logits.clone(), list(sequences)).logprobs


def test_logprobs_are_the_models_own_whatever_is_done_to_the_choice(logits: Tensor) -> None:
    """Temperature, filters, penalties and bias move the choice; what the model thought stays the same."""
    worst = int(logits.argmin())
    expected = torch.log_softmax(logits, -1)
    forced = sequence(
        (3, 4), (5, 5), temperature=1.5, top_k=3, presence_penalty=2, logit_bias={worst: 100.0}, logprobs=3
    )

    logprobs = logprobs_of(logits[None], forced)[0]

    assert logprobs.logprob == pytest.approx(float(expected[worst]))
    assert list(logprobs.top_ids) == expected.topk(3).indices.tolist()
    assert list(logprobs.top_logprobs) == pytest.approx(expected.topk(3).values.tolist())


def test_listed_tokens_are_reported_in_place_of_the_likeliest(logits: Tensor) -> None:
    expected = torch.log_softmax(logits, -1)
    listed = sorted((3, 7, 11), key=lambda token: -expected[token])
    rows = [sequence(logprobs=3, logprob_token_ids=(7, 3, 11), allowed_token_ids=(5,)), sequence(logprobs=1)]

    shown, likeliest = logprobs_of(logits.expand(2, -1), *rows).values()

    assert (list(shown.top_ids), shown.logprob) == (listed, pytest.approx(float(expected[5])))
    assert list(shown.top_logprobs) == pytest.approx(expected[listed].tolist())
    assert likeliest.top_ids == (int(logits.argmax()),)


def test_only_rows_that_ask_get_logprobs_and_as_many_as_they_ask(logits: Tensor) -> None:
    logits[[17, 9]] = 0.5
    rows = [sequence(), sequence(logprobs=0), sequence(temperature=0, logprobs=2), sequence(temperature=0)]
    rows.append(sequence(logprobs=VOCAB + 1))

    logprobs = logprobs_of(logits.expand(5, -1), *rows)

    assert {row: len(token.top_ids) for row, token in logprobs.items()} == {1: 0, 2: 2, 4: VOCAB}
    assert logprobs[2].top_ids[0] == int(logits.argmax())
    whole = logprobs[4].top_ids
    assert whole.index(9) + 1 == whole.index(17), "of equals the lowest id comes first"
    assert logprobs[2].logprob == logprobs[2].top_logprobs[0]
    assert math.fsum(map(math.exp, logprobs[4].top_logprobs)) == pytest.approx(1.0)


def test_asking_for_logprobs_changes_no_choice(logits: Tensor) -> None:
    rows = logits.expand(40, -1)
    silent = [sequence(seed=n, top_p=0.9) for n in range(40)]
    curious = [sequence(seed=n, top_p=0.9, logprobs=5) for n in range(40)]

    assert sample(rows, *silent) == sample(rows, *curious)


# How it is computed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_lowest_id_on_a_tie(dtype: torch.dtype) -> None:
    logits = torch.randn(40, 3 * VOCAB, generator=torch.Generator().manual_seed(5)).to(dtype)
    logits[7] = -1.0
    logits[8, [11, 13]] = 9.0
    logits[9, 2] = float("nan")

    tokens = sample(logits, *(sequence(temperature=0) for _ in range(40)))

    assert tokens[7:10] == [0, 11, None]
    assert tokens[10:] == logits[10:].float().argmax(-1).tolist()


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1000])
def test_draws_reach_every_token_of_any_vocabulary(vocab_size: int) -> None:
    probs = torch.full((1, vocab_size), 1 / vocab_size)
    numbers = [(token + 0.5) / vocab_size for token in range(vocab_size)]

    tokens = draws_module.draw(probs.expand(vocab_size, -1), torch.tensor(numbers, dtype=torch.float64))

    assert tokens.tolist() == list(range(vocab_size))


def test_counts_of_tokens_grow_with_the_sequence() -> None:
    rng = random.Random(9)
    prompt, output = [rng.randrange(50) for _ in range(30)], [rng.randrange(300) for _ in range(500)]
    counts = TokenCounts(prompt, output[:100])
    for token in output[100:]:
        counts.add(token)

    expected = Counter(output)
    assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == {
        token: expected[token] for token in {*prompt, *output}
    }


@pytest.mark.parametrize("temperature", [1e39, 1e308])
def test_heat_beyond_float32_draws_from_all_tokens_that_may_come(temperature: float) -> None:
    """Infinite, it made NaN of a token that `min_tokens` forbids, and every draw the last token."""
    requests = [
        Request(str(seed), [1], SamplingParams(temperature=temperature, seed=seed, min_tokens=5))
        for seed in range(50)
    ]
    sequences = [Sequence(request, arrival=0, num_tokens_max=9) for request in requests]

    tokens = Sampler([0]).sample(torch.zeros(50, 258), sequences).tokens

    assert len(set(tokens)) > 10
    assert 0 not in tokens
