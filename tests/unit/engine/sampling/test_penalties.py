"""Penalties from counts that stay on the device equal those counted anew, at every step."""

import random
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from torch import Tensor

from nightshift_engine.core.sequence import Sequence
from nightshift_engine.sampling import adjustments as penalties
from nightshift_engine.sampling.sampler import Sampler
from tests.unit.engine.sampling.test_sampler import EOS, VOCAB, sequence

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 0.0, "presence_penalty": 1.0, "frequency_penalty": 0.3},
    {"temperature": 1.0, "repetition_penalty": 0.7, "frequency_penalty": -0.5},
    {"temperature": 0.0, "frequency_penalty": 2.0, "logit_bias": {3: 4.0}, "min_tokens": 5},
    {"temperature": 0.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"top_k": 3, "min_p": 0.2},
]


def anew(logits: Tensor, sequences: Seq[Sequence]) -> list[int | None]:
    return Sampler([EOS]).sample(logits.clone(), sequences).tokens


def random_sequence(rng: random.Random) -> Sequence:
    prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 9)))
    output = tuple(rng.randrange(VOCAB) for _ in range(rng.choice([0, 0, 6])))
    return sequence(prompt, output, seed=rng.randrange(99), **rng.choice(KINDS))


@pytest.mark.parametrize("seed", range(4))
def test_a_step_in_flight_counts_as_if_its_tokens_were_known(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the engine overlaps: step N is chosen while the host knows the tokens up to step N - 2 only."""
    monkeypatch.setattr(penalties, "ROOM", 5)
    rng, keeper = random.Random(seed), Sampler([EOS])
    generator = torch.Generator().manual_seed(seed)
    running = [random_sequence(rng) for _ in range(4)]
    in_flight: tuple[list[Sequence], Tensor] | None = None
    for _ in range(80):
        if rng.random() < 0.1:
            running.append(random_sequence(rng))
        if rng.random() < 0.1 and len(running) > 1:
            running.pop(rng.randrange(len(running)))
        if rng.random() < 0.1:
            rng.shuffle(running)
        taken = list(running) if rng.random() < 0.8 else running[::2]  # some are left out of a step
        logits = torch.randn(len(taken), VOCAB, generator=generator) * 3
        choice = keeper.choose(logits.clone(), taken, in_flight[1] if in_flight is not None else None)
        for row, member in enumerate(taken):
            member.promise(row)
        if in_flight is not None:  # now its tokens are read
            for member, token in zip(in_flight[0], in_flight[1].tolist(), strict=True):
                member.num_promised -= 1
                member.append(token)
        promised = [member.num_promised for member in taken]
        for member in taken:
            member.num_promised = 0
        assert choice.tokens.tolist() == anew(logits, taken)
        for member, number in zip(taken, promised, strict=True):
            member.num_promised = number
        in_flight = taken, choice.tokens


def test_a_step_that_failed_is_chosen_again_with_the_same_counts() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    rows = [sequence(temperature=0.0, frequency_penalty=2.0), sequence(seed=2, repetition_penalty=1.9)]
    sampler = Sampler([EOS])
    for _ in range(10):
        first = sampler.sample(logits.clone(), rows).tokens
        assert sampler.sample(logits.clone(), rows).tokens == first == anew(logits, rows)
        for row, token in zip(rows, first, strict=True):
            assert token is not None
            row.append(token)
