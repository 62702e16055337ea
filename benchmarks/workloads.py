"""Request sets, the same for every engine: token ids in, fixed numbers of tokens out, no end-of-sequence.

Prompt lengths are lognormal (median 90 tokens, 32 to 256), output lengths lognormal with a heavy tail (median
48, 4 to 384), so a batch is never in step. Needs the standard library only: peers' environments import it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

DEFAULT_SEED = 1234
NUM_SPECIAL_TOKENS = 4
"""Ids below this have meanings (`vocabularies.SPECIAL_TOKENS`) and are in no prompt."""


@dataclass(frozen=True)
class Lengths:
    """Lognormal, in tokens, clipped to a range."""

    median: int
    sigma: float
    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return min(self.high, max(self.low, round(self.median * rng.lognormvariate(0, self.sigma))))


PROMPT_LENGTHS = Lengths(90, 0.6, 32, 256)
OUTPUT_LENGTHS = Lengths(48, 0.9, 4, 384)


@dataclass(frozen=True)
class BenchRequest:
    id: int
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


@dataclass(frozen=True)
class Workload:
    """Requests for one checkpoint size. The first `num_shared_prefix_tokens` of all prompts are the same."""

    name: str
    model: str
    seed: int
    num_shared_prefix_tokens: int
    requests: tuple[BenchRequest, ...]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)


@dataclass(frozen=True)
class _Recipe:
    model: str
    vocab_size: int
    num_requests: int
    num_shared_prefix_tokens: int = 0
    prompt: Lengths = PROMPT_LENGTHS
    output: Lengths = OUTPUT_LENGTHS


RECIPES = {
    "tiny": _Recipe("tiny", 512, 8),
    "small": _Recipe("small", 8192, 128),
    "medium": _Recipe("medium", 32000, 64),
    "medium-256": _Recipe("medium", 32000, 256),
    "small-shared": _Recipe("small", 8192, 128, num_shared_prefix_tokens=256),
    "medium-shared": _Recipe("medium", 32000, 64, num_shared_prefix_tokens=256),
    "medium-long": _Recipe(
        "medium", 32000, 32, prompt=Lengths(1500, 0.1, 1200, 1800), output=Lengths(16, 0.3, 8, 32)
    ),
    "gpt2": _Recipe("gpt2", 32000, 64),
    "gemma2": _Recipe("gemma2", 32000, 64),
    "qwen3-moe": _Recipe("qwen3-moe", 32000, 64),
}
"""medium-256 has enough requests to keep a batch of 64 full: steady state rather than tail. medium-long is
long prompts with short answers; the last three are medium's lengths on other families."""


def make_workload(name: str, seed: int = DEFAULT_SEED, num_requests: int | None = None) -> Workload:
    """The workload of that name, or its first `num_requests`. Equal for equal arguments.

    Raises ValueError naming the argument.
    """
    if name not in RECIPES:
        raise ValueError(f"workload must be one of {', '.join(RECIPES)}, got {name!r}")
    if num_requests is not None and num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    recipe = RECIPES[name]
    # Two generators, so that lengths are the same with and without a shared prefix.
    lengths, ids = random.Random(seed), random.Random(seed + 1)

    def draw_ids(count: int) -> tuple[int, ...]:
        return tuple(ids.randrange(NUM_SPECIAL_TOKENS, recipe.vocab_size) for _ in range(count))

    prefix = draw_ids(recipe.num_shared_prefix_tokens)
    requests = []
    for index in range(recipe.num_requests):
        num_prompt, num_output = recipe.prompt.draw(lengths), recipe.output.draw(lengths)
        requests.append(BenchRequest(index, prefix + draw_ids(num_prompt), num_output))
    return Workload(name, recipe.model, seed, recipe.num_shared_prefix_tokens, tuple(requests[:num_requests]))


def warm_up_requests(workload: Workload, count: int = 32, num_output_tokens: int = 8) -> list[BenchRequest]:
    """Short requests of the workload's lengths that share no prefix with it: its prefixes stay uncached."""
    return [
        BenchRequest(request.id, request.prompt_token_ids[::-1], num_output_tokens)
        for request in workload.requests[:count]
    ]
