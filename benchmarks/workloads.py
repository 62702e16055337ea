"""Request sets, the same for every engine: token ids in and fixed numbers of tokens out, texts, and queries.

Prompt lengths are lognormal (median 90 tokens, 32 to 256), output lengths lognormal with a heavy tail (median
48, 4 to 384), so a batch is never in step. Texts have 8 to 512 tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.vocabularies import source_texts

DEFAULT_SEED = 1234
NUM_SPECIAL_TOKENS = 4
"""Ids below this have meanings (`vocabularies.SPECIAL_TOKENS`) and are in no prompt."""
WARM_UP_ITEMS = 32
WARM_UP_TOKENS = 8
WORDS = 20_000
QUERY_WORDS = 8
DOCUMENTS = 32
"""Documents of each query."""

Kind = Literal["decoder", "embeddings", "classification", "rerank"]


@dataclass(frozen=True)
class Lengths:
    """Lognormal lengths, clipped to a range."""

    median: int
    sigma: float
    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return min(self.high, max(self.low, round(self.median * rng.lognormvariate(0, self.sigma))))


PROMPT_LENGTHS = Lengths(90, 0.6, 32, 256)
OUTPUT_LENGTHS = Lengths(48, 0.9, 4, 384)
SHORT = Lengths(12, 0.5, 4, 48)
"""In words, as a sentence or two."""
PROMPTS = Lengths(80, 0.6, 28, 226)
"""In words: about the tokens of `PROMPT_LENGTHS`."""
TOKENS: Final = Lengths(90, 0.8, 8, 512)
"""In tokens, special ones included."""


@dataclass(frozen=True)
class Workload:
    """Items for one model. A decoder's item is `[prompt's ids, number of output tokens]`.

    An item of embeddings and classification is a text, one of reranking `[query, documents]`.
    """

    name: str
    kind: Kind
    model: str
    unit: str
    amount: int
    """How many of `unit` the items have together."""
    items: tuple[Any, ...]
    warm_up: tuple[Any, ...]
    """Items that share no beginning with the others: the prefixes of those stay uncached."""
    num_shared_prefix_tokens: int = 0

    def first(self, count: int) -> Workload:
        """The first items alone, to try settings; `amount` is not theirs."""
        return replace(self, items=self.items[:count])


@dataclass(frozen=True)
class Recipe:
    model: str
    vocab_size: int
    count: int
    num_shared_prefix_tokens: int = 0
    prompt: Lengths = PROMPT_LENGTHS
    output: Lengths = OUTPUT_LENGTHS


RECIPES = {
    "tiny": Recipe("tiny", 512, 8),
    "small": Recipe("small", 8192, 128),
    "medium": Recipe("medium", 32000, 64),
    "medium-256": Recipe("medium", 32000, 256),
    "small-shared": Recipe("small", 8192, 128, num_shared_prefix_tokens=256),
    "medium-shared": Recipe("medium", 32000, 64, num_shared_prefix_tokens=256),
    "medium-long": Recipe(
        "medium", 32000, 32, prompt=Lengths(1500, 0.1, 1200, 1800), output=Lengths(16, 0.3, 8, 32)
    ),
    "gpt2": Recipe("gpt2", 32000, 64),
    "gemma2": Recipe("gemma2", 32000, 64),
    "qwen3-moe": Recipe("qwen3-moe", 32000, 64),
}
"""Workloads of decoders. medium-256 has enough requests to keep a batch of 64 full."""

TEXT_WORKLOADS: dict[str, tuple[Kind, str, int]] = {
    "embeddings": ("embeddings", "tokens", 300),
    "classification": ("classification", "rows", 200),
    "rerank": ("rerank", "documents", 6),
}
"""Kind, unit and number of items of the workloads of encoders, all on MiniLM."""

WORKLOADS = (*RECIPES, *TEXT_WORKLOADS)


def make_workload(name: str, seed: int = DEFAULT_SEED, count: int | None = None) -> Workload:
    """The workload of that name, or its first `count` items. Equal for equal arguments.

    Raises ValueError naming the argument.
    """
    if name not in WORKLOADS:
        raise ValueError(f"workload must be one of {', '.join(WORKLOADS)}, got {name!r}")
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    return _of_tokens(name, seed, count) if name in RECIPES else _of_texts(name, seed, count)


def _of_tokens(name: str, seed: int, count: int | None) -> Workload:
    recipe = RECIPES[name]
    # Two generators, so that lengths are the same with and without a shared prefix.
    lengths, ids = random.Random(seed), random.Random(seed + 1)

    def draw_ids(number: int) -> tuple[int, ...]:
        return tuple(ids.randrange(NUM_SPECIAL_TOKENS, recipe.vocab_size) for _ in range(number))

    prefix = draw_ids(recipe.num_shared_prefix_tokens)
    items = []
    for _ in range(recipe.count):
        num_prompt, num_output = recipe.prompt.draw(lengths), recipe.output.draw(lengths)
        items.append((prefix + draw_ids(num_prompt), num_output))
    items = items[:count]
    return Workload(
        name,
        "decoder",
        recipe.model,
        "output tokens",
        sum(num_output for _, num_output in items),
        tuple(items),
        tuple((prompt[::-1], WARM_UP_TOKENS) for prompt, _ in items[:WARM_UP_ITEMS]),
        recipe.num_shared_prefix_tokens,
    )


def _of_texts(name: str, seed: int, count: int | None) -> Workload:
    from benchmarks.checkpoints import minilm

    kind, unit, default = TEXT_WORKLOADS[name]
    number = count or default
    if kind == "rerank":
        texts = make_texts_of_tokens(minilm(), number * DOCUMENTS, seed)
        queries = make_queries(texts, DOCUMENTS, seed)
        return Workload(name, kind, "minilm", unit, number * DOCUMENTS, tuple(queries), tuple(queries[-2:]))
    texts = make_texts_of_tokens(minilm(), number, seed)
    amount = number if kind == "classification" else num_tokens(minilm(), texts)
    return Workload(name, kind, "minilm", unit, amount, tuple(texts), tuple(texts[-WARM_UP_ITEMS:]))


def make_queries(texts: Sequence[str], num_documents: int, seed: int) -> list[tuple[str, list[str]]]:
    """Queries of words of the texts, each with its documents; the last texts may be left over."""
    draw = random.Random(seed)
    words = [word for text in texts for word in text.split()]
    return [
        (" ".join(draw.choices(words, k=QUERY_WORDS)), list(texts[start : start + num_documents]))
        for start in range(0, len(texts) - num_documents + 1, num_documents)
    ]


def make_texts(count: int, seed: int, lengths: Lengths = SHORT) -> list[str]:
    """Texts of words of the standard library's sources, no two equal. The same for equal arguments."""
    draw, words = random.Random(seed), _words()
    drawn = (draw.choices(words, k=lengths.draw(draw)) for _ in range(count))
    return [" ".join((f"{seed}-{number}", *text)) for number, text in enumerate(drawn)]


def make_texts_of_tokens(checkpoint: Path, count: int, seed: int, lengths: Lengths = TOKENS) -> list[str]:
    """Whole words, of exactly the drawn numbers of tokens by the checkpoint's tokenizer. Repeatable."""
    tokenizer = _tokenizer(checkpoint)
    words, sizes = _sized_words(tokenizer)
    of_one_token = [word for word, size in zip(words, sizes, strict=True) if size == 1]
    draw, special, texts = random.Random(seed), tokenizer.num_special_tokens_to_add(), []
    for _ in range(count):
        left, chosen = lengths.draw(draw) - special, []
        while left > 0:
            number = draw.randrange(len(words))
            fits = 0 < sizes[number] <= left
            chosen.append(words[number] if fits else draw.choice(of_one_token))
            left -= sizes[number] if fits else 1
        texts.append(" ".join(chosen))
    return texts


def num_tokens(checkpoint: Path, texts: Sequence[str]) -> int:
    return sum(len(ids) for ids in _tokenizer(checkpoint)(list(texts))["input_ids"])


def _tokenizer(checkpoint: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


def _sized_words(tokenizer: Any) -> tuple[Sequence[str], Sequence[int]]:
    """Words with their numbers of tokens, which are the same wherever in a text they stand."""
    words = [word for text in source_texts() for word in text.split()[:200]][:WORDS]

    def sizes(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]

    first, later = sizes(words), sizes([f" {word}" for word in words])
    kept = [number for number, size in enumerate(first) if size == later[number]]
    return [words[number] for number in kept], [first[number] for number in kept]


@cache
def _words() -> list[str]:
    """The first words of the sources, with their repetitions."""
    words: list[str] = []
    for text in source_texts():
        words += re.findall(r"[A-Za-z]{2,}", text)
        if len(words) >= WORDS:
            break
    return words[:WORDS]
