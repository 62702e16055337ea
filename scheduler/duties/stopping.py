"""See that jobs which were told to stop do stop.

A worker hears of the order with its heartbeat, finishes the rows it is at, and ends the shard itself. This
duty does what no worker does: it ends shards that came back to the queue after the order, takes shards away
from workers that have had their grace, and ends online jobs whose one shard is over.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from nightshift.jobs import Job, JobKind
from nightshift.jobs.leases import LeaseConfig
from nightshift.lifecycle.recovery import Verdict, recover
from nightshift.lifecycle.transitions import end_stopped_online
from nightshift.store import Store, Transaction
from scheduler.runtime.duty import Result


@dataclass(frozen=True)
class StoppingConfig:
    interval_s: float = 1.0  # between passes
    jobs_per_pass_max: int = 100  # each in a transaction of its own; the longest waiting come first
    shards_per_job_max: int = 1000  # taken away in one pass; the rest of a large fleet's in the next ones
    grace_s: float = 30.0  # from the order, for rows in flight to finish
    hearing_s: float = 2 * LeaseConfig.heartbeat_s  # on top: the order travels with the heartbeat

    def __post_init__(self) -> None:
        if self.grace_s < 0 or self.hearing_s < 0:
            raise ValueError("a grace period cannot be negative")

    def is_over(self, told_at: datetime, now: datetime) -> bool:
        """Whether a job that was told to stop then has had its grace."""
        return now >= told_at + timedelta(seconds=self.grace_s + self.hearing_s)


@dataclass(frozen=True, kw_only=True)
class Stopped(Result):
    """What one pass did."""

    shards_ended: int = 0  # that waited in the queue
    shards_taken: int = 0  # from workers that did not stop
    online_ended: int = 0  # online jobs whose shard was over


class Stopping:
    """See the file's docstring."""

    name = "stopping"

    def __init__(self, store: Store, config: StoppingConfig = StoppingConfig()) -> None:
        self._store = store
        self._config = config

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def run_once(self, now: datetime) -> Stopped:
        """One pass over jobs that were told to stop and have not ended."""
        with self._store.snapshot() as tx:
            jobs = tx.jobs.stopping(self._config.jobs_per_pass_max)
        ended = taken = online = 0
        for job in jobs:
            with self._store.transaction() as tx:
                ended += tx.shards.stop_queued(job.id)
                taken += self._take_away(tx, job, now)
                online += self._end_online(tx, job, now)
        return Stopped(shards_ended=ended, shards_taken=taken, online_ended=online)

    def _take_away(self, tx: Transaction, job: Job, now: datetime) -> int:
        """Fence off workers that go on past the grace: from here on the database refuses what they write."""
        assert job.stop_requested_at is not None, "a stopping job was told when"
        if not self._config.is_over(job.stop_requested_at, now):
            return 0
        held = tx.leases.of_job(job.id, self._config.shards_per_job_max)
        return sum(recover(tx, lease, Verdict.STOP, now) for lease in held)

    def _end_online(self, tx: Transaction, job: Job, now: datetime) -> int:
        if job.kind is not JobKind.ONLINE or tx.shards.has_open(job.id):
            return 0
        return end_stopped_online(tx, job, now)
