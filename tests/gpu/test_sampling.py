"""Sampling on a device keeps the tokens that the CPU keeps, and counts penalties as it does."""

from typing import Any

import numpy as np
import pytest
import torch

from nightshift_engine.sampling.filters import beginning, likeliest
from nightshift_engine.sampling.random_rows import seeds_column, uniform
from nightshift_engine.sampling.sampler import Sampler
from tests.unit.engine.sampling.test_filters import drawn_by_definition, some_logits
from tests.unit.engine.sampling.test_kernels import assert_top_p_ends_as_defined
from tests.unit.engine.sampling.test_sampler import EOS, sample, sequence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("vocab_size", [1000, 50_257, 151_936])
@pytest.mark.parametrize("seed", range(4))
def test_filters_keep_what_they_keep_on_a_cpu(vocab_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(np.stack([some_logits(rng, vocab_size) for _ in range(5)]))
    probs = torch.softmax(logits, -1)
    wanted = (probs.sum(-1, dtype=torch.float64) * torch.from_numpy(rng.random(5)))[:, None]

    assert torch.equal(likeliest(logits.cuda(), 50).cpu(), likeliest(logits, 50))
    kept = beginning(logits.cuda(), probs.cuda(), wanted.cuda())
    assert torch.equal(kept.cpu(), beginning(logits, probs, wanted))


def test_draws_are_those_of_the_definition_in_any_company() -> None:
    """Logits as a head in bfloat16 computes them: many are equal."""
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 0.6}, {"top_k": 20, "top_p": 0.95}, {"top_k": 2000}, {"top_p": 0.9},
        {"min_p": 0.1},
    ]  # fmt: skip
    logits = (torch.randn(60, 151_936, generator=torch.Generator().manual_seed(1)) * 3).bfloat16().float()
    rows = [sequence(seed=n, **kinds[n % len(kinds)]) for n in range(60)]

    together = sample(logits.cuda(), *rows)

    num_compared = 0
    for row, token, row_logits in zip(rows, together, logits.numpy(), strict=True):
        number = float(uniform(seeds_column([row.seed]), [row.next_output_index])[0])
        expected = drawn_by_definition(row_logits, row.sampling, number)
        if expected is not None:
            num_compared += 1
            assert token == expected, row.sampling
    assert num_compared > 15
    alone = [sample(logits[n : n + 1].cuda(), rows[n])[0] for n in range(60)]
    assert alone == together


@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.999999])
@pytest.mark.parametrize("spread", [0.01, 0.6, 3.0, 9.0])
def test_top_p_ends_where_its_definition_does(spread: float, top_p: float) -> None:
    logits = torch.randn(151_936, generator=torch.Generator().manual_seed(3)) * spread

    for row in (logits, logits.bfloat16().float()):
        assert_top_p_ends_as_defined(row.cuda(), top_p)


def test_logprobs_are_those_of_a_cpu() -> None:
    logits = (torch.randn(4, 151_936, generator=torch.Generator().manual_seed(1)) * 3).bfloat16().float()
    rows = [sequence(temperature=0.0, logprobs=count) for count in (0, 1, 5, 20)]

    wanted, got = (Sampler([EOS]).sample(logits.to(device), rows) for device in ("cpu", "cuda"))

    for row, logprobs in wanted.logprobs.items():
        assert got.logprobs[row].logprob == pytest.approx(logprobs.logprob, abs=1e-4)
        assert got.logprobs[row].top_logprobs == pytest.approx(logprobs.top_logprobs, abs=1e-4)


def test_penalties_of_steps_in_flight_are_those_of_a_cpu() -> None:
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.4},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "min_tokens": 4},
        {"logit_bias": {7: 3.0}},
    ]
    logits = [torch.randn(3, 5000, generator=torch.Generator().manual_seed(n)) for n in range(50)]
    chosen: list[list[list[int | None]]] = []
    for device in ("cpu", "cuda"):
        rows, sampler, tokens = [sequence(temperature=0.0, **kind) for kind in kinds], Sampler([EOS]), []
        for step_logits in logits:
            tokens.append(sampler.sample(step_logits.to(device, copy=True), rows).tokens)
            for row, token in zip(rows, tokens[-1], strict=True):
                assert token is not None
                row.append(token)
        chosen.append(tokens)

    assert chosen[0] == chosen[1]
