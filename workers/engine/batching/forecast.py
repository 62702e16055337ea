"""How many blocks those running will need at most, if their answers become as long as expected.

Everybody's final size is not needed at once: by the time the longest is at its end, the others have ended and
given back theirs. The peak lies at the moment somebody ends (the "past-future" scheduler of LightLLM).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Future:
    """What is expected of one running sequence."""

    remaining_tokens: int
    held_tokens: int
    """Room of the blocks that become free when it ends; those it shares do not."""
    slack_tokens: int
    """Room left in the blocks it has."""


def peak_growth_blocks(futures: Iterable[Future], block_size: int) -> int:
    """Blocks needed beyond those held now, at the worst moment, at one token per sequence and step."""
    ordered = sorted(futures, reverse=True)
    held_by_ended = sum(future.held_tokens for future in ordered)
    peak = slack = 0
    for alive, future in enumerate(ordered, start=1):
        # When this one ends: all with more to do are alive, all with less have ended.
        held_by_ended -= future.held_tokens
        slack += future.slack_tokens
        rounding = alive * block_size // 2
        peak = max(peak, alive * future.remaining_tokens - slack + rounding - held_by_ended)
    return -(-peak // block_size)
