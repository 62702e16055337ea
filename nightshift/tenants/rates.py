"""Rates per minute: when one that has been reached allows more, and what a request counts for. Pure.

A rate is measured as the `limits` library does: the last full minute counts by the part of it that a minute
ending now would still contain, the present one whole (its "sliding window counter").
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

WINDOW_S: Final = 60
_MARGIN_S: Final = 0.001  # past the instant at which the count becomes a whole number less

CHARS_PER_TOKEN: Final = 4  # as OpenAI estimates prompts
ANSWER_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@dataclass(frozen=True)
class Window:
    """The taken part of a rate. Times are from now until a minute's count is dropped."""

    previous: int
    previous_ttl_s: float  # up to 60
    current: int
    current_ttl_s: float  # 60 to 120: it is the previous one for its last 60

    @property
    def used(self) -> int:
        return math.floor(self.previous * self.previous_ttl_s / WINDOW_S) + self.current

    def fits_in_s(self, cost: int, limit: int) -> float:
        """The seconds until this much more, at most the limit, is within it if nothing else is taken."""
        allowed = limit - cost
        if self.used <= allowed:
            return 0.0
        if self.current <= allowed:
            return _falls_to_s(allowed - self.current, self.previous, self.previous_ttl_s)
        return _falls_to_s(allowed, self.current, self.current_ttl_s)

    def empty_in_s(self, limit: int) -> float:
        """The seconds until the whole limit is free again."""
        return self.fits_in_s(limit, limit)


@dataclass(frozen=True)
class Rate:
    """The part of a tenant's rate that a request takes."""

    name: str  # requests or tokens
    limit: int  # per minute
    cost: int

    @property
    def can_fit(self) -> bool:
        return self.cost <= self.limit


@dataclass(frozen=True)
class Taken:
    """A rate after a request has taken its part, or was refused it."""

    rate: Rate
    is_taken: bool
    window: Window

    @property
    def remaining(self) -> int:
        return max(0, self.rate.limit - self.window.used)

    @property
    def retry_in_s(self) -> float:
        """Infinite if the cost is more than the limit."""
        if not self.rate.can_fit:
            return math.inf
        return self.window.fits_in_s(self.rate.cost, self.rate.limit)


def duration_text(seconds: float) -> str:
    """A duration as OpenAI's headers have it: `120ms`, `8.64s`, `6m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"


def tokens_asked(body: Mapping[str, Any], size_bytes: int) -> int | None:
    """The tokens that a request may cost, estimated from its JSON alone: a quarter of its bytes, and the
    longest answer that it allows, for every answer. None: it asks no model. Its fields are not checked yet.
    """
    if "model" not in body:
        return None
    answer = next((count for name in ANSWER_LIMITS if (count := _count(body.get(name)))), 0)
    prompts = body.get("prompt")
    texts = len(prompts) if isinstance(prompts, list) and not isinstance(next(iter(prompts), 0), int) else 1
    return size_bytes // CHARS_PER_TOKEN + answer * max(1, _count(body.get("n"))) * max(1, texts)


def _falls_to_s(allowed: int, count: int, ttl_s: float) -> float:
    """Seconds until a minute's weight, which falls to 0 in its last 60 seconds, has fallen this far."""
    return max(0.0, ttl_s - WINDOW_S * (allowed + 1) / count) + _MARGIN_S


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
