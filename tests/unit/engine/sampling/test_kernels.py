"""Tokens are drawn by Triton's kernels as by their definition; here in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nightshift_engine.sampling import random_rows, sampler
from tests.unit.engine.sampling.test_filters import by_definition, in_the_interpreter, ranking, some_logits
from tests.unit.engine.sampling.test_sampler import EOS, sample, sequence

pytest.importorskip("triton")
pytestmark = in_the_interpreter

from nightshift_engine.kernels.triton.sampling import Cuts, Draws, draw_tokens, find_cuts, sum_chunks  # noqa: E402

TILE = 256
"""Tokens that `find_cuts` takes at once here."""


@pytest.fixture(autouse=True)
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (random_rows, sampler):
        monkeypatch.setattr(module, "has_triton_kernels", lambda device: True)


def draws_of(logits: Tensor, **params: float) -> Draws:
    """Every row of `logits`, all with these parameters."""
    values = {"temperature": 1.0, "top_k": logits.shape[1], "top_p": 1.0, "min_p": 0.0} | params
    count, device = len(logits), logits.device
    columns = torch.tensor(list(values.values()), dtype=torch.float64, device=device)[:, None]
    numbers = torch.rand(count, dtype=torch.float64, device=device)
    return Draws(logits, torch.arange(count, device=device), columns.expand(-1, count).contiguous(), numbers)


def assert_top_p_ends_as_defined(logits: Tensor, top_p: float) -> None:
    """Compares what is kept of one row `[vocabulary]`, on any device, with the definition in float64."""
    draws = draws_of(logits[None], top_p=top_p)
    [row_kept] = kept(draws.logits, find_cuts(draws, sum_chunks(draws.logits)))
    row = logits.cpu().numpy()
    weights = np.exp(row.astype(np.float64) - row.max())
    # Sums in another order differ by less than this.
    least, most = (
        by_definition(row, weights, share * weights.sum()) for share in (top_p - 1e-7, top_p + 1e-7)
    )
    ranked = ranking(row).tolist()
    assert row_kept == sorted(ranked[: len(row_kept)])
    assert max(1, len(least)) <= len(row_kept) <= len(most)


def kept(logits: Tensor, cuts: Cuts) -> list[list[int]]:
    """Tokens of each row that are not cut."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    value, last = cuts.values[:, None], cuts.ids[:, None]
    mask = (logits > value) | ((logits == value) & (ids <= last))
    return [row.nonzero()[:, 0].tolist() for row in mask]


@pytest.mark.parametrize("vocab_size", [1, 7, 1000, TILE - 1, TILE, 3001])
def test_top_k_ends_where_its_definition_does(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = np.stack([some_logits(rng, vocab_size) for _ in range(2)])
    top_k = int(rng.integers(1, vocab_size + 1))
    draws = draws_of(torch.from_numpy(logits), top_k=top_k)

    cuts = find_cuts(draws, sum_chunks(draws.logits))

    for row, row_kept in zip(logits, kept(draws.logits, cuts), strict=True):
        wanted = by_definition(row, np.ones(vocab_size), top_k)
        possible = np.isfinite(row)  # a token that may not come is never drawn, whether it is kept or not
        assert [token for token in row_kept if possible[token]] == [t for t in wanted if possible[t]]


@pytest.mark.parametrize("top_p", [1e-12, 0.3, 0.95, 0.999999])
@pytest.mark.parametrize("kind", ["peaked", "flat", "tied", "mostly impossible"])
def test_top_p_ends_where_its_definition_does(kind: str, top_p: float) -> None:
    rng = np.random.default_rng(7)
    smooth = rng.normal(size=3000).astype(np.float32)
    logits = {
        "peaked": smooth * 6,
        "flat": smooth * np.float32(0.01),
        "tied": smooth.round(),
        "mostly impossible": np.where(rng.random(3000) < 0.999, -np.inf, smooth).astype(np.float32),
    }[kind]
    assert_top_p_ends_as_defined(torch.from_numpy(logits), top_p)


@pytest.mark.parametrize("temperature", [1e37, 1e308])
def test_heat_beyond_float32_keeps_as_many_equally_likely_tokens_as_it_takes(temperature: float) -> None:
    draws = draws_of(torch.arange(10.0)[None], top_p=0.5, temperature=temperature)

    assert kept(draws.logits, find_cuts(draws, sum_chunks(draws.logits, draws.rows, draws.params))) == [
        [5, 6, 7, 8, 9]
    ]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns of NaN, a device does not
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_usable_numbers_gets_no_token(sampling: dict[str, Any], poison: float) -> None:
    good = torch.randn(700, generator=torch.Generator().manual_seed(2))
    bad = torch.full((700,), poison) if poison < 0 else good.where(torch.arange(700) != 600, poison)
    row = sequence(**sampling)

    assert sample(torch.stack([bad, good]), row, row) == [None, *sample(good[None], row)]


def test_a_row_draws_the_same_in_any_company() -> None:
    kinds: list[dict[str, Any]] = [
        {"top_k": 20, "top_p": 0.95}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.0}, {},
    ]  # fmt: skip
    logits = torch.randn(10, 600, generator=torch.Generator().manual_seed(6)) * 3
    rows = [sequence(seed=n, **kinds[n % len(kinds)]) for n in range(10)]

    together = sample(logits, *rows)

    assert [sample(logits[n : n + 1], rows[n])[0] for n in range(10)] == together


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_numbers_draw_possible_tokens(number: float) -> None:
    logits = torch.full((1, 600), float("-inf"))
    logits[0, [20, 300]] = 0.0
    draws = draws_of(logits)
    draws.numbers.fill_(number)

    for are_filtered in (False, True):
        tokens, usable = draw_tokens(draws, are_filtered=are_filtered)
        assert (tokens.tolist(), usable.tolist()) == ([20 if number == 0 else 300], [True])


@pytest.mark.parametrize("changes", [{}, {"presence_penalty": 1.0}])
def test_logprobs_are_those_of_the_torch_path(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is made by torch both times, and the logits change before it where there are penalties."""
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(8)) * 9
    logits[:, 300:400] = float("-inf")
    rows = [sequence(temperature=0.0, logprobs=count, **changes) for count in (0, 1, 20)]
    sampled = []
    for by_kernels in (False, True):
        monkeypatch.setattr(sampler, "has_triton_kernels", lambda device, answer=by_kernels: answer)
        sampled.append(sampler.Sampler([EOS]).sample(logits.clone(), rows))

    for wanted, got in zip(sampled[0].logprobs.values(), sampled[1].logprobs.values(), strict=True):
        assert got.top_ids == wanted.top_ids
        assert got.top_logprobs == pytest.approx(wanted.top_logprobs, abs=1e-5)
        assert got.logprob == pytest.approx(wanted.logprob, abs=1e-5)
