"""Sampling on a device keeps the tokens that the CPU keeps, and counts penalties as it does."""

from typing import Any

import numpy as np
import pytest
import torch

from nightshift_engine.sampling.filters import beginning, likeliest
from nightshift_engine.sampling.sampler import Sampler
from tests.unit.engine.sampling.test_filters import some_logits
from tests.unit.engine.sampling.test_sampler import EOS, sequence

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
