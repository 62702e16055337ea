"""Exponential backoff. Webhooks have their own published schedule in `outbound/webhooks.py`."""

from dataclasses import dataclass
from typing import Final

EXPONENT_MAX: Final = 32  # keeps the power from overflowing


@dataclass(frozen=True)
class Backoff:
    """The delay is `first_s`, then `factor` times as long after each failure, at most `longest_s`."""

    first_s: float
    longest_s: float
    factor: float = 2.0

    def delay_s(self, failures: int) -> float:
        """The delay after this many failures in a row."""
        exponent = min(max(failures, 1) - 1, EXPONENT_MAX)
        return min(self.longest_s, self.first_s * self.factor**exponent)
