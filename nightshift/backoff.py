"""How long to wait before another try: twice as long after each failure, up to a limit. Pure.

Webhooks are the exception: `outbound/webhooks.py` has a published schedule of its own.
"""

from dataclasses import dataclass
from typing import Final

EXPONENT_MAX: Final = 32  # what never stops failing must not overflow the power


@dataclass(frozen=True)
class Backoff:
    """Delays in seconds: `first_s`, then `factor` times as long each time, at most `longest_s`."""

    first_s: float
    longest_s: float
    factor: float = 2.0

    def delay_s(self, failures: int) -> float:
        """After so many failures in a row."""
        exponent = min(max(failures, 1) - 1, EXPONENT_MAX)
        return min(self.longest_s, self.first_s * self.factor**exponent)
