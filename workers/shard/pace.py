"""Which rows in flight may still end in the time there is. Pure.

A row ends at its `max_tokens` at the latest. Where rows of the shard have ended before with fewer tokens, it
is taken to end no later than the longest of these, unless it has more already. Without a measured speed no
row is given up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SLACK: Final = 2.0  # rows speed up when others are taken out: a row is given up if it needs twice the time


@dataclass(frozen=True, slots=True)
class Pace:
    """What one row has generated. Tokens of all its choices together."""

    tokens: int  # earlier leases' included
    tokens_max: int | None  # None: it generates none, or as many as it likes
    measured_tokens: int = 0  # generated in `measured_s`
    measured_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """0: not known."""
        return self.measured_tokens / self.measured_s if self.measured_s > 0 else 0.0


def hopeless_rows(paces: Mapping[int, Pace], longest: int, left_s: float) -> list[int]:
    """The rows that will not end within `left_s`. `longest`: tokens of the longest that has ended, or 0."""
    fastest = max((pace.tokens_per_s for pace in paces.values()), default=0.0)
    if fastest == 0:
        return []
    return [row for row, pace in paces.items() if _needs_s(pace, longest, fastest) > SLACK * left_s]


def _needs_s(pace: Pace, longest: int, fastest: float) -> float:
    """A row that has not begun may be as fast as the fastest."""
    if pace.tokens_max is None:
        return 0.0
    end = longest if pace.tokens < longest < pace.tokens_max else pace.tokens_max
    return max(0, end - pace.tokens) / (pace.tokens_per_s or fastest)
