"""Durations counted in buckets, which can be added and asked for quantiles. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, Self

Bucket = tuple[float, float]
"""More than the first number of seconds, and at most the second."""


@dataclass(frozen=True)
class Durations:
    counts: Mapping[Bucket, int] = field(default_factory=dict)  # without empty buckets

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Sequence[int]) -> Self:
        """`bounds` ascend; `counts` has one number more: those beyond the last."""
        buckets = zip(pairwise((0.0, *bounds, inf)), counts, strict=True)
        return cls({bucket: count for bucket, count in buckets if count > 0})

    def __add__(self, other: "Durations") -> "Durations":
        sums = dict(self.counts)
        for bucket, count in other.counts.items():
            sums[bucket] = sums.get(bucket, 0) + count
        return Durations(sums)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def quantile(self, share: float) -> float | None:
        """By linear interpolation within its bucket, as Prometheus' `histogram_quantile` has it; of the last,
        which has no end, its beginning. None: there are none.
        """
        assert 0.0 <= share <= 1.0, f"no share of all: {share}"
        wanted, below = share * self.count, 0
        for (low, high), count in sorted(self.counts.items()):
            if below + count >= wanted:
                return low if high == inf else low + (high - low) * (wanted - below) / count
            below += count
        return None

    def to_json(self) -> list[list[float | None]]:
        """[low, high, count] of each bucket; null: without an end."""
        return [
            [low, None if high == inf else high, count] for (low, high), count in sorted(self.counts.items())
        ]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """What is no bucket is left out."""
        found = (
            [each for each in data if isinstance(each, list) and len(each) == 3]
            if isinstance(data, list)
            else []
        )
        return cls(
            {(float(low), inf if high is None else float(high)): int(count) for low, high, count in found}
        )
