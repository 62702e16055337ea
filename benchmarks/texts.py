"""Texts of given lengths, made of words of the standard library's sources."""

from __future__ import annotations

import random
import re
from functools import cache

from benchmarks.vocabularies import source_texts
from benchmarks.workloads import Lengths

WORDS = 20_000
SHORT = Lengths(12, 0.5, 4, 48)
"""In words, as a sentence or two."""
PROMPTS = Lengths(80, 0.6, 28, 226)
"""In words: about the tokens of `workloads.PROMPT_LENGTHS`."""


def make_texts(count: int, seed: int, lengths: Lengths = SHORT) -> list[str]:
    """No two are equal: each begins with its number. The same for equal arguments."""
    draw, words = random.Random(seed), _words()
    drawn = (draw.choices(words, k=lengths.draw(draw)) for _ in range(count))
    return [" ".join((f"{seed}-{number}", *text)) for number, text in enumerate(drawn)]


@cache
def _words() -> list[str]:
    """The first so many words, with their repetitions."""
    found: list[str] = []
    for text in source_texts():
        found += re.findall(r"[A-Za-z]{2,}", text)
        if len(found) >= WORDS:
            break
    return found[:WORDS]
