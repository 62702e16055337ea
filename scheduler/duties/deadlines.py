"""Tell jobs to stop that are past their deadline or their error rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nightshift.jobs import Counts, Job, StopReason
from nightshift.lifecycle.transitions import request_stop
from nightshift.store import Store
from scheduler.runtime.duty import Result


@dataclass(frozen=True)
class DeadlinesConfig:
    interval_s: float = 0.5  # between passes: how late a deadline is noticed
    jobs_per_pass_max: int = 100  # in one transaction; the next pass follows at once
    error_rate_rows_min: int = 100  # finished rows before their rate says anything

    def __post_init__(self) -> None:
        if self.jobs_per_pass_max < 1 or self.error_rate_rows_min < 1:
            raise ValueError("limits of the deadlines duty must be at least 1")


@dataclass(frozen=True, kw_only=True)
class StopsRequested(Result):
    expired: int = 0
    failed: int = 0  # too many failed rows


class Deadlines:
    name = "deadlines"

    def __init__(self, store: Store, config: DeadlinesConfig = DeadlinesConfig()) -> None:
        self._store = store
        self._config = config
        self.interval_s = config.interval_s

    def run_once(self, now: datetime) -> StopsRequested:
        """One pass over jobs past their window, their run time or their error rate."""
        limit = self._config.jobs_per_pass_max
        with self._store.snapshot() as tx:
            overdue = tx.jobs.overdue(now, limit)
            suspects = tx.jobs.too_many_errors(limit)
        failing = [job for job in suspects if must_abort(job, self._config.error_rate_rows_min)]
        return StopsRequested(
            expired=self._request_stops(overdue, StopReason.EXPIRED, now),
            failed=self._request_stops(failing, StopReason.FAILED, now),
            has_more=len(overdue) >= limit,
        )

    def _request_stops(self, jobs: Sequence[Job], reason: StopReason, now: datetime) -> int:
        if not jobs:
            return 0
        with self._store.transaction() as tx:
            return sum(request_stop(tx, job, reason, now) for job in jobs)


def must_abort(job: Job, rows_min: int) -> bool:
    """Whether too many rows have failed: of at least `rows_min` finished, or of the whole job. Pure."""
    counts, rate = job.counts, job.spec.max_error_rate
    if rate is None:
        return False
    finished = counts.succeeded + counts.failed
    return (finished >= rows_min and counts.failed > rate * finished) or exceeds_error_rate(counts, rate)


def exceeds_error_rate(counts: Counts, rate: float | None) -> bool:
    """Whether more rows have failed than may fail of the whole job; False while its size is unknown. Pure."""
    return rate is not None and counts.total is not None and counts.failed > rate * counts.total
