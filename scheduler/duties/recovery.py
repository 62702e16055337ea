"""Gives back shards whose lease has expired by the database's clock.

The worker is not asked: one that can answer would have renewed.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from nightshift.fleet.workers import ExitCause
from nightshift.jobs.leases import LeaseConfig
from nightshift.lifecycle.recovery import LEASES_EXPIRED, count_lost, gone_with, recover_lost
from nightshift.store import PendingWork, Store
from nightshift.store.shards.leases import ExpiredLease
from scheduler.runtime.duty import Every, PassResult, earliest


@dataclass(frozen=True)
class RecoveryConfig:
    interval_s: float = 1.0  # between passes: added to the lease's own time
    shards_per_pass_max: int = 200  # in one transaction; the next pass follows at once
    attempts_max: int = 20  # leases of a shard in a row without progress; then it is given up
    workers_interval_s: float = 10.0
    lease_ttl_s: float = LeaseConfig.ttl_s  # from a renewal until the lease runs out
    worker_silent_s: float = 3 * LeaseConfig.ttl_s  # without a heartbeat; then a worker is listed as stopped


@dataclass(frozen=True, kw_only=True)
class Rescued(PassResult):
    retried: int = 0  # shards given back to the queue
    stopped: int = 0  # shards whose job was told to stop
    given_up: int = 0  # shards out of attempts
    workers_lost: int = 0


class Recovery:
    name = "recovery"

    def __init__(self, store: Store, config: RecoveryConfig = RecoveryConfig()) -> None:
        self._store = store
        self._config = config
        self.interval_s = config.interval_s
        self._stale_worker_check = Every(config.workers_interval_s)
        self._outages = Outages(config.lease_ttl_s)

    def due_at(self, work: PendingWork) -> datetime | None:
        """The time of the next pass, often enough to notice that the database was away."""
        lost_at = self._stale_worker_check.due_at or work.at
        return earliest(work.first_lease_ends_at, lost_at, self._outages.due_at)

    def run_once(self, now: datetime) -> Rescued:
        self._outages.passed(now)
        if not self._anything_expired(now):
            return Rescued(workers_lost=self._mark_lost_workers(now))
        with self._store.transaction() as tx:
            expired = tx.leases.expired(now, self._config.shards_per_pass_max)
            causes = {lease.worker_id: self._outages.cause(lease) for lease in expired}
            lost = [*expired, *gone_with(tx, expired, causes)]
            recovered = recover_lost(tx, lost, causes, self._config.attempts_max, now)
            tx.counters.add(LEASES_EXPIRED, len(expired))
            for worker_id, cause in causes.items():
                count_lost(tx, [worker_id], cause, now)
        return Rescued(
            retried=recovered.retried,
            stopped=recovered.stopped,
            given_up=recovered.given_up,
            workers_lost=self._mark_lost_workers(now),
            has_more=len(expired) >= self._config.shards_per_pass_max,
        )

    def _anything_expired(self, now: datetime) -> bool:
        """Looks in a read transaction: most passes find nothing, and SQLite has one writer at a time."""
        with self._store.snapshot() as tx:
            return bool(tx.leases.expired(now, limit=1))

    def _mark_lost_workers(self, now: datetime) -> int:
        if not self._stale_worker_check.is_due(now):
            return 0
        silence = timedelta(seconds=self._config.worker_silent_s)
        with self._store.transaction() as tx:
            lost = tx.workers.mark_lost(now - silence)
            if self._outages.none_since(now - silence):  # else they may be alive and unable to renew
                count_lost(tx, lost, ExitCause.LEASE_EXPIRED, now)
        return len(lost)


class Outages:
    """Tells workers that died from workers that could not renew, by gaps between passes."""

    def __init__(self, lease_ttl_s: float) -> None:
        self._ttl = timedelta(seconds=lease_ttl_s)
        self._passed_at: datetime | None = None
        self._over_at: datetime | None = None
        self._first_passed_at: datetime | None = None

    @property
    def due_at(self) -> datetime | None:
        """The time of the next pass, so that no gap between passes is taken for an outage."""
        return None if self._passed_at is None else self._passed_at + self._ttl / 4

    def passed(self, now: datetime) -> None:
        """A long gap counts as an outage of the database. If this process was paused instead, no worker lost
        meanwhile is held against its rows.
        """
        if self._passed_at is not None and now - self._passed_at > self._ttl / 2:
            self._over_at = now
        self._passed_at = now
        self._first_passed_at = self._first_passed_at or now

    def none_since(self, moment: datetime) -> bool:
        looks_since = self._over_at or self._first_passed_at
        return looks_since is not None and looks_since < moment

    def cause(self, expired: ExpiredLease) -> ExitCause:
        """The cause of a lease's end. Heartbeats that began in an outage may wait for their timeout until
        half a lease after it: leases last renewed by then count as lost to the outage.
        """
        last_renewed_at = expired.expired_at - self._ttl
        if self._over_at is not None and last_renewed_at < self._over_at + self._ttl / 2:
            return ExitCause.DATABASE_UNAVAILABLE
        return ExitCause.LEASE_EXPIRED
