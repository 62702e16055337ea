"""top_k, top_p and min_p keep exactly the tokens of their definition, on every way to find them."""

import random
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightshift_engine import SamplingParams
from nightshift_engine.sampling import filters, random_rows
from nightshift_engine.sampling.filters import beginning
from nightshift_engine.sampling.random_rows import seeds_column, uniform
from nightshift_engine.sampling.sampler import Sampler
from tests.unit.engine.sampling.test_sampler import EOS, sample, sequence

in_the_interpreter = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(), reason="Triton's interpreter is not in use"
)


def ranking(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """The likeliest first, of equals the lowest id."""
    return np.argsort(-logits, kind="stable")


def some_logits(rng: np.random.Generator, vocab_size: int) -> NDArray[np.float32]:
    """Logits of a kind that the seed chooses: smooth, with many ties, with gaps, all equal, far apart."""
    smooth = rng.normal(size=vocab_size) * rng.choice([0.01, 1.0, 5.0, 40.0])
    kinds = [
        smooth,
        smooth.round(),
        np.where(rng.random(vocab_size) < 0.5, -np.inf, smooth),
        np.zeros(vocab_size) * rng.choice([1.0, -1.0], vocab_size),
        np.where(rng.random(vocab_size) < 0.5, 0.0, -0.0) + (rng.random(vocab_size) < 0.3),
    ]
    chosen = kinds[rng.integers(len(kinds))].astype(np.float32)
    chosen[rng.integers(vocab_size)] = np.float32(chosen.max() if np.isfinite(chosen.max()) else 0.0)
    return chosen  # type: ignore[no-any-return]


def by_definition(logits: NDArray[np.float32], weights: NDArray[np.float64], wanted: float) -> list[int]:
    kept: list[int] = []
    mass = 0.0
    for token in ranking(logits).tolist():
        if mass >= wanted:
            break
        kept.append(token)
        mass += weights[token]
    return sorted(kept)


WAYS: dict[str, Any] = {
    "as the CPU": beginning,
    "as another device": lambda logits, weights, wanted: filters._beginning_by_bisection(
        logits, weights.expand_as(logits), wanted
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(40))
def test_a_beginning_is_the_shortest_that_weighs_enough(way: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab_size = int(rng.integers(1, 2000))
    logits = np.stack([some_logits(rng, vocab_size) for _ in range(3)])
    probs = torch.softmax(torch.from_numpy(logits), -1)
    wanted = probs.sum(-1, dtype=torch.float64) * torch.from_numpy(rng.random(3))

    kept = WAYS[way](torch.from_numpy(logits), probs, wanted[:, None])

    for row in range(3):
        expected = by_definition(logits[row], probs[row].double().numpy(), float(wanted[row]))
        assert kept[row].nonzero()[:, 0].tolist() == expected


def kept_by(logits: Tensor, **sampling: Any) -> set[int]:
    """Every token that some number in [0, 1) draws: a fine comb of them, as there are few tokens."""
    seeds = range(600)
    rows = [sequence(seed=seed, **sampling) for seed in seeds]
    return {token for token in sample(logits.expand(len(rows), -1), *rows) if token is not None}


@pytest.mark.parametrize("value", [0.0, -7.5, 3e4])
def test_top_k_keeps_exactly_k_of_tied_tokens_and_those_of_the_lowest_ids(value: float) -> None:
    logits = torch.full((24,), value)
    logits[[3, 9]] = value + abs(value) + 1.0

    assert kept_by(logits, top_k=1) == {3}
    assert kept_by(logits, top_k=2) == {3, 9}
    assert kept_by(logits, top_k=4, temperature=50.0) == {0, 1, 3, 9} if abs(value) < 100 else {3, 9}


def test_top_k_of_one_is_greedy_however_close_the_second_comes() -> None:
    """Their probabilities round to the same number, their logits differ."""
    logits = torch.tensor([[0.0, 0.0, 1e-9, 1e-9, 0.0]])
    greedy = sample(logits, sequence(temperature=0))

    assert greedy == [2]
    for temperature in (0.5, 1.0, 1e4):
        rows = [sequence(seed=seed, top_k=1, temperature=temperature) for seed in range(50)]
        assert sample(logits.expand(50, -1), *rows) == greedy * 50


@pytest.mark.parametrize(("p", "count"), [(0.3, 3), (0.5, 5), (0.51, 6), (0.05, 1), (1.0, 10)])
def test_top_p_of_equally_likely_tokens_keeps_as_many_as_it_takes(p: float, count: int) -> None:
    assert kept_by(torch.zeros(10), top_p=p) == set(range(count))


def drawn_by_definition(logits: NDArray[np.float32], params: SamplingParams, number: float) -> int | None:
    """Draws in float64, one filter after the other; None where rounding decides."""
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    if np.any(np.abs(weights - params.min_p) < 1e-6 * params.min_p):
        return None
    weights[weights < params.min_p] = 0.0
    order = ranking(logits)
    if params.top_k > 0:
        weights[order[params.top_k :]] = 0.0
    mass = np.cumsum(weights[order])
    if params.top_p < 1:
        wanted = params.top_p * mass[-1]
        if np.any(np.abs(mass - wanted) < 1e-5 * mass[-1]):
            return None
        weights[order[mass - weights[order] >= wanted]] = 0.0
    cdf = np.cumsum(weights) / weights.sum()
    return None if np.any(np.abs(cdf - number) < 1e-5) else int(np.searchsorted(cdf, number, side="right"))


@pytest.mark.parametrize(
    ("small", "tried", "on_cpu", "by_kernels", "seeds", "compared_min"),
    [
        (1024, 64, True, False, 40, 150),
        (8, 3, True, False, 40, 150),
        (8, 64, False, False, 40, 150),
        pytest.param(1024, 64, False, True, 4, 12, marks=in_the_interpreter),
    ],
)
def test_every_draw_is_that_of_the_definition(
    small: int,
    tried: int,
    on_cpu: bool,
    by_kernels: bool,
    seeds: int,
    compared_min: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random_rows, "TOP_K_SMALL", small)
    monkeypatch.setattr(random_rows, "TOP_P_TRIED", tried)
    monkeypatch.setattr(random_rows, "has_triton_kernels", lambda device: by_kernels)
    for module in (filters, random_rows):
        monkeypatch.setattr(module, "may_look", lambda values: on_cpu)
    num_compared = 0
    for seed in range(seeds):
        rng, chooser = np.random.default_rng(seed), random.Random(seed)
        vocab_size = chooser.choice([7, 256, 257, 1000, 1024])
        logits = np.stack([some_logits(rng, vocab_size) for _ in range(8)])
        rows = [
            sequence(
                seed=chooser.randrange(10**9),
                temperature=chooser.choice([0.3, 1.0, 2.0]),
                top_k=chooser.choice([0, 1, 5, 40, 300, 5000]),
                top_p=chooser.choice([1.0, 0.99, 0.7, 0.1]),
                min_p=chooser.choice([0.0, 0.0, 0.05, 1.0]),
            )
            for _ in range(8)
        ]
        tokens = sample(torch.from_numpy(logits), *rows)
        for row, token, row_logits in zip(rows, tokens, logits, strict=True):
            number = float(uniform(seeds_column([row.seed]), [row.next_output_index])[0])
            expected = drawn_by_definition(row_logits, row.sampling, number)
            if expected is not None:
                num_compared += 1
                assert token == expected, (seed, row.sampling)
    assert num_compared > compared_min


@pytest.mark.parametrize("vocab_size", [5000, 5120])
def test_a_row_draws_the_same_in_any_company_at_any_number_at_once(
    vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[dict[str, Any]] = [
        {"top_k": 3},
        {"top_k": 900, "top_p": 0.8},
        {"top_k": 2000, "top_p": 0.8, "min_p": 0.001},
        {"top_p": 0.95, "temperature": 3.0},
        {"top_p": 0.2},
        {"min_p": 0.1, "temperature": 0.7},
        {},
        {"temperature": 0.0},
    ]
    many = torch.randn(40, vocab_size, generator=torch.Generator().manual_seed(6)) * 3
    rows = [sequence(seed=n, **kinds[n % len(kinds)]) for n in range(40)]
    together = sample(many, *rows)

    monkeypatch.setattr(random_rows, "CPU_LOGITS_AT_ONCE", 3 * vocab_size)
    assert sample(many, *rows) == together
    assert [
        Sampler([EOS]).sample(many[n : n + 1].clone(), [rows[n]]).tokens[0] for n in range(40)
    ] == together
