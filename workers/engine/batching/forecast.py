"""How long answers will become, and how many blocks those running will need at most if they do.

The final sizes are not needed all at once: when the longest ends, the others have released theirs. The peak
lies at the moment a sequence ends (the "past-future" scheduler of LightLLM).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .output_lengths import OutputLengths
from .sequence import Sequence


@dataclass(frozen=True, slots=True, order=True)
class Future:
    """What is expected of one running sequence."""

    remaining_tokens: int
    held_tokens: int
    """Tokens in the blocks that become free when it ends; those it shares do not."""
    slack_tokens: int
    """Tokens that the blocks it has can still take."""


class Forecast:
    """What to expect of sequences, from the answers there have been."""

    def __init__(self, lengths: OutputLengths, block_size: int) -> None:
        self._lengths = lengths
        self._block_size = block_size

    def learn(self, sequence: Sequence) -> None:
        """`sequence` has come to its end."""
        self._lengths.add(sequence.group, sequence.num_output_tokens)

    def remaining_tokens(self, sequence: Sequence) -> int:
        """Tokens that a sequence is expected to add to those it has."""
        num_tokens = sequence.num_tokens
        if sequence.num_expected_tokens <= num_tokens or sequence.num_output_tokens == 0:
            expected = self._lengths.expect(sequence.group, sequence.num_output_tokens)
            sequence.num_expected_tokens = min(sequence.num_prompt_tokens + expected, sequence.num_tokens_max)
        return sequence.num_expected_tokens - num_tokens

    def growth_blocks(self, running: Iterable[Sequence], newcomer: Sequence) -> int:
        """Blocks needed beyond those that are held, and those for all that `newcomer` knows already."""
        futures = [self._future(sequence, len(sequence.blocks)) for sequence in running]
        futures.append(self._future(newcomer, -(-newcomer.num_tokens // self._block_size)))
        return peak_growth_blocks(futures, self._block_size)

    def _future(self, sequence: Sequence, num_blocks: int) -> Future:
        capacity = num_blocks * self._block_size
        return Future(
            remaining_tokens=self.remaining_tokens(sequence),
            held_tokens=capacity - (sequence.num_cached_tokens or 0),
            slack_tokens=capacity - sequence.num_tokens,
        )


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
