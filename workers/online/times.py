"""Durations of online requests, from a client's submit on, by model and class."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from nightshift.jobs import OnlineClaim
from nightshift_engine import Histogram

FIRST_TOKEN_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60, 300)
REQUEST_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


@dataclass(slots=True)
class RequestTimes:
    first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BUCKETS_S))
    request_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BUCKETS_S))


class OnlineTimes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_label: dict[tuple[str, str], RequestTimes] = {}

    def first_token(self, claim: OnlineClaim, submitted_s: float) -> None:
        """`submitted_s` is of the monotonic clock."""
        with self._lock:
            self._of(claim).first_token_s.observe(_since(submitted_s))

    def answered(self, claim: OnlineClaim, submitted_s: float) -> None:
        with self._lock:
            self._of(claim).request_s.observe(_since(submitted_s))

    def __iter__(self) -> Iterator[tuple[tuple[str, str], RequestTimes]]:
        """Pairs of a label, which is a model and a class, and its times."""
        with self._lock:
            return iter(list(self._by_label.items()))

    def _of(self, claim: OnlineClaim) -> RequestTimes:
        label = (claim.job.model or "", claim.job.priority.value)
        return self._by_label.setdefault(label, RequestTimes())


def _since(moment_s: float) -> float:
    return max(0.0, time.monotonic() - moment_s)
