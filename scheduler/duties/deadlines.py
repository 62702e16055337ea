"""Tell jobs to stop that are past their deadline or a limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from nightshift.jobs import Job, StopReason
from nightshift.jobs.limits import limit_passed
from nightshift.lifecycle.transitions import request_stop
from nightshift.store import PendingWork, Store
from scheduler.runtime.duty import PassResult, earliest


@dataclass(frozen=True)
class DeadlinesConfig:
    interval_s: float = 0.5  # between passes: how late a deadline is noticed
    jobs_per_pass_max: int = 100  # in one transaction; the next pass follows at once
    error_rate_rows_min: int = 100  # finished rows before their rate says anything

    def __post_init__(self) -> None:
        if self.jobs_per_pass_max < 1 or self.error_rate_rows_min < 1:
            raise ValueError("limits of the deadlines duty must be at least 1")


@dataclass(frozen=True, kw_only=True)
class StopsRequested(PassResult):
    expired: int = 0
    failed: int = 0  # past a limit


class Deadlines:
    name = "deadlines"

    def __init__(self, store: Store, config: DeadlinesConfig = DeadlinesConfig()) -> None:
        self._store = store
        self._config = config
        self.interval_s = config.interval_s

    def due_at(self, work: PendingWork) -> datetime | None:
        if work.is_past_limit:
            return work.at
        return earliest(work.first_deadline_at, work.first_runtime_deadline_at)

    def run_once(self, now: datetime) -> StopsRequested:
        """One pass over jobs past their window, their run time or a limit."""
        limit = self._config.jobs_per_pass_max
        with self._store.snapshot() as tx:
            overdue = tx.jobs.overdue(now, limit)
            suspects = tx.jobs.past_limits(limit)
        failing = [job for job in suspects if limit_passed(job, self._config.error_rate_rows_min)]
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
