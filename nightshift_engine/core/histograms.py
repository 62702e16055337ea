"""Counts of what is measured, in buckets: an operator reads them as histograms of the worker.

One thread observes; any may read, and may miss the newest observation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from .request import PRIORITY_RANKS

QUEUE_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
PREFILL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
INTER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
DECODE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 1800)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STEP_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Observations up to and including each bound, and beyond the last."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """How many observations are at most each bound, the last of which is "+Inf": as Prometheus has it."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


@dataclass(slots=True)
class ClassHistograms:
    """Of the requests of one priority class. An encoder has the time in the queue only, and prompts."""

    queue_s: Histogram = field(default_factory=lambda: Histogram(QUEUE_BUCKETS_S))
    """From `add` to the first step that computes some of it."""
    prefill_s: Histogram = field(default_factory=lambda: Histogram(PREFILL_BUCKETS_S))
    """From then to its first token."""
    inter_token_s: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BUCKETS_S))
    decode_s: Histogram = field(default_factory=lambda: Histogram(DECODE_BUCKETS_S))
    """From its first token to its last."""
    prompt_tokens: int = 0
    generation_tokens: int = 0


class EngineHistograms:
    """Of one engine."""

    def __init__(self) -> None:
        self.batch_size = Histogram(BATCH_BUCKETS)
        """Sequences, or an encoder's inputs, of a step."""
        self.tokens_per_step = Histogram(STEP_TOKENS_BUCKETS)
        """Padding not counted."""
        self.by_class = {name: ClassHistograms() for name in PRIORITY_RANKS}

    def of(self, priority: str) -> ClassHistograms:
        """The histograms of a class."""
        histograms = self.by_class.get(priority)
        if histograms is None:
            histograms = self.by_class[priority] = ClassHistograms()
        return histograms

    def observe_step(self, batch_size: int, num_tokens: int) -> None:
        self.batch_size.observe(batch_size)
        self.tokens_per_step.observe(num_tokens)
