"""Stops jobs that are past their deadline or a limit, and ends what is left of jobs that were told to stop.

Workers learn of a stop with a heartbeat and end their shards. `Stopping` ends shards in the queue, takes
shards from workers past the grace period, and ends online jobs whose shard has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from nightshift.jobs import Job, JobKind, StopReason
from nightshift.jobs.leases import LeaseConfig
from nightshift.jobs.limits import limit_passed
from nightshift.lifecycle.recovery import Verdict, recover
from nightshift.lifecycle.transitions import end_stopped_online, request_stop
from nightshift.store import PendingWork, Store, Transaction
from nightshift.store.shards.shards import STOPPED_MAX
from scheduler.runtime.duty import PassResult, earliest


@dataclass(frozen=True)
class DeadlinesConfig:
    interval_s: float = 0.5  # between passes: how late a deadline is noticed
    jobs_per_pass_max: int = 100  # in one transaction; the next pass follows at once
    error_rate_rows_min: int = 100  # finished rows before their rate says anything


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


@dataclass(frozen=True)
class StoppingConfig:
    interval_s: float = 1.0  # between passes
    jobs_per_pass_max: int = 100  # each in its own transaction; the longest waiting first
    shards_per_job_max: int = 1000  # taken away in one pass
    grace_s: float = 30.0  # while rows in flight finish
    notice_s: float = 2 * LeaseConfig.heartbeat_s  # on top: until a heartbeat tells the worker

    def is_over(self, told_at: datetime, now: datetime) -> bool:
        """Whether the grace period has ended."""
        return now >= told_at + timedelta(seconds=self.grace_s + self.notice_s)


@dataclass(frozen=True, kw_only=True)
class Stopped(PassResult):
    shards_ended: int = 0  # queued ones
    shards_taken: int = 0  # taken from workers that did not stop
    online_ended: int = 0  # online jobs whose shard had ended


class Stopping:
    name = "stopping"

    def __init__(self, store: Store, config: StoppingConfig = StoppingConfig()) -> None:
        self._store = store
        self._config = config
        self.interval_s = config.interval_s

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.is_stopping else None

    def run_once(self, now: datetime) -> Stopped:
        with self._store.snapshot() as tx:
            jobs = tx.jobs.stopping(self._config.jobs_per_pass_max)
        ended = taken = online = 0
        has_more = False
        for job in jobs:
            with self._store.transaction() as tx:
                stopped = tx.shards.stop_queued(job.id)
                taken += self._take_away(tx, job, now)
                online += self._end_online(tx, job, now)
            ended += stopped
            has_more |= stopped >= STOPPED_MAX
        return Stopped(shards_ended=ended, shards_taken=taken, online_ended=online, has_more=has_more)

    def _take_away(self, tx: Transaction, job: Job, now: datetime) -> int:
        """Fence off workers past the grace period: the database refuses their writes."""
        assert job.stop_requested_at is not None, "a stopping job was told when"
        if not self._config.is_over(job.stop_requested_at, now):
            return 0
        held = tx.leases.of_job(job.id, self._config.shards_per_job_max)
        return sum(recover(tx, lease, Verdict.STOP, now) for lease in held)

    def _end_online(self, tx: Transaction, job: Job, now: datetime) -> int:
        if job.kind is not JobKind.ONLINE or tx.shards.has_open(job.id):
            return 0
        return end_stopped_online(tx, job, now)
