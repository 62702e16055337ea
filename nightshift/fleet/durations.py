"""Durations counted in buckets, which can be added and asked for quantiles. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, Final, Self, TypeGuard

FIGURE_MAX: Final = 2**63 - 1  # what a database can hold, as a count

Bucket = tuple[float, float]
"""More than the first number of seconds, and at most the second."""


@dataclass(frozen=True)
class Durations:
    counts: Mapping[Bucket, int] = field(default_factory=dict)  # without empty buckets

    @classmethod
    def from_counts(cls, bounds: Sequence[float], counts: Sequence[int]) -> Self:
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
        """The quantile, interpolated within its bucket as by Prometheus' `histogram_quantile`; of the last
        bucket, which has no end, its beginning. None: there are none.
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
        """The durations of valid buckets; others are left out."""
        told = [bucket for bucket in data if _is_bucket(bucket)] if isinstance(data, list) else []
        return cls(
            {(float(low), inf if high is None else float(high)): int(count) for low, high, count in told}
        )


def is_figure(value: object) -> TypeGuard[int | float]:
    """Whether this can be counted or measured: no text, NaN, infinity, negative or absurdly large number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= FIGURE_MAX


def _is_bucket(data: object) -> bool:
    if not (isinstance(data, list) and len(data) == 3):
        return False
    low, high, count = data
    return (
        is_figure(low)
        and (high is None or (is_figure(high) and low < high))
        and is_figure(count)
        and count >= 1
    )
