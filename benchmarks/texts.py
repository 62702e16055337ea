"""Texts of given lengths, made of words of the standard library's sources."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.vocabularies import source_texts
from benchmarks.workloads import Lengths

WORDS = 20_000
SHORT = Lengths(12, 0.5, 4, 48)
"""In words, as a sentence or two."""
PROMPTS = Lengths(80, 0.6, 28, 226)
"""In words: about the tokens of `workloads.PROMPT_LENGTHS`."""

TOKENS: Final = Lengths(90, 0.8, 8, 512)
"""In tokens, special ones included: what encoders are measured on."""


def make_texts(count: int, seed: int, lengths: Lengths = SHORT) -> list[str]:
    """No two are equal: each begins with its number. The same for equal arguments."""
    draw, words = random.Random(seed), _words()
    drawn = (draw.choices(words, k=lengths.draw(draw)) for _ in range(count))
    return [" ".join((f"{seed}-{number}", *text)) for number, text in enumerate(drawn)]


def make_texts_of_tokens(checkpoint: Path, count: int, seed: int, lengths: Lengths = TOKENS) -> list[str]:
    """Whole words, of exactly the drawn numbers of tokens by the checkpoint's tokenizer. Repeatable."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
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
    """The first so many words, with their repetitions."""
    found: list[str] = []
    for text in source_texts():
        found += re.findall(r"[A-Za-z]{2,}", text)
        if len(found) >= WORDS:
            break
    return found[:WORDS]
