"""Limits of requests and tokens a minute, as OpenAI enforces and tells them."""

from dataclasses import dataclass
from typing import Final

MINUTE_S: Final = 60.0


@dataclass
class Allowance:
    """A number of requests or tokens a minute, which comes back steadily."""

    name: str  # requests or tokens
    per_minute: int
    left: float = -1.0
    as_of_s: float = 0.0

    def take(self, amount: int, now_s: float) -> float:
        """Seconds until there will be enough; 0: it is taken."""
        before = self.per_minute if self.left < 0 else self.left
        came = (now_s - self.as_of_s) * self.per_minute / MINUTE_S
        self.left, self.as_of_s = min(self.per_minute, before + came), now_s
        if self.left >= amount:
            self.left -= amount
            return 0.0
        return (amount - self.left) * MINUTE_S / self.per_minute

    def headers(self) -> dict[str, str]:
        reset_s = (self.per_minute - self.left) * MINUTE_S / self.per_minute
        return {
            f"x-ratelimit-limit-{self.name}": str(self.per_minute),
            f"x-ratelimit-remaining-{self.name}": str(int(self.left)),
            f"x-ratelimit-reset-{self.name}": f"{reset_s:.3f}s",
        }
