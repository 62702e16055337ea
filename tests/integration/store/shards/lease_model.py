"""The truth about shards and their leases, in a few lines, to compare the database with.

It knows no SQL, and no more of the rules than the service promises.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from nightshift.fleet.workers import Capacity, ExitCause
from nightshift.jobs import JobKind, JobState, JsonObject, ShardState
from nightshift.jobs.dead_letters import CRASHES_MAX
from nightshift.jobs.leases import Lease

ATTEMPTS_MAX: Final = 4  # so few that runs get there
WORKERS: Final = {"worker_spot": Capacity.SPOT, "worker_steady": Capacity.ON_DEMAND}


@dataclass(eq=False)
class ModelJob:
    id: str
    tenant_id: str
    kind: JobKind
    capacity: str  # spot, on_demand or any
    retry_on_interrupt: bool
    is_stopped: bool = False
    is_paused: bool = False
    priority: int = 1  # the rank of its class
    ended_as: JobState | None = None  # of an online job; who ends a bulk job is not asked here

    @property
    def may_be_changed(self) -> bool:
        """Whether its owner may change it."""
        return not self.is_stopped and self.ended_as is None


@dataclass(eq=False)
class ModelShard:
    id: str
    job: ModelJob
    state: ShardState = ShardState.QUEUED
    term: int = 0
    holder: str | None = None
    expires_at: datetime | None = None
    not_before: datetime | None = None
    attempts: int = 0  # leases; those that ended by an interruption or a fault outside are taken back
    crashes: int = 0  # workers that died with it
    under_way: tuple[int, ...] = ()  # rows written down under the present lease
    dead: Set[int] = frozenset()  # rows that are run no more
    rows: int = 0
    segments: list[tuple[str, int]] = field(default_factory=list)  # key and rows, in the order of commits
    carry_over: str | None = None
    answer: JsonObject | None = None

    @property
    def is_held(self) -> bool:
        return self.state is ShardState.LEASED

    def is_held_under(self, lease: Lease) -> bool:
        return self.is_held and self.term == lease.term

    def has_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def may_be_claimed(self, worker: str, now: datetime) -> bool:
        suits = self.job.capacity in ("any", WORKERS[worker])
        waits = self.not_before is not None and self.not_before > now
        # The worker that claims an online request sees the stop itself.
        is_wanted = self.job.kind is JobKind.ONLINE or not self.job.is_stopped
        return (
            self.state is ShardState.QUEUED and suits and is_wanted and not waits and not self.job.is_paused
        )

    def claimed(self, lease: Lease) -> None:
        self.state, self.holder, self.expires_at = ShardState.LEASED, lease.worker_id, lease.expires_at
        self.term += 1
        self.attempts += 1

    def left(self, state: ShardState = ShardState.QUEUED, *, is_charged: bool = True) -> None:
        """Its lease is over."""
        self.state, self.holder, self.expires_at, self.under_way = state, None, None, ()
        self.attempts -= not is_charged

    def listed(self, key: str, rows: int) -> None:
        self.segments.append((key, rows))
        self.rows += rows

    def answered(self, body: JsonObject) -> None:
        assert self.answer is None, f"{self.id} has two answers"
        self.left(ShardState.DONE)
        self.answer, self.rows, self.job.ended_as = body, 1, JobState.SUCCEEDED

    def stopped(self) -> None:
        """It is not to be run any more."""
        self.left(ShardState.STOPPED)
        if self.job.kind is JobKind.ONLINE:
            self.job.ended_as = JobState.CANCELLED

    def lost_its_worker(self, cause: ExitCause, now: ShardState, attempts: int, dead: Set[int]) -> None:
        """Checks that its fate is a possible one. `jobs/dead_letters.py` says which."""
        self.crashes += cause.is_crash
        if self.job.is_stopped:
            self.stopped()
            return
        for row in dead - self.dead:
            assert self.under_way == (row,), f"row {row} died among others"
            assert self.crashes >= CRASHES_MAX, f"row {row} died too soon"
        is_charged = attempts == self.attempts
        assert is_charged or attempts == self.attempts - 1
        if now is ShardState.FAILED:
            worn_out = self.attempts >= ATTEMPTS_MAX or self.crashes >= CRASHES_MAX
            assert worn_out or not self.job.retry_on_interrupt
            if self.job.kind is JobKind.ONLINE:
                self.job.ended_as = JobState.FAILED
        else:
            assert self.job.retry_on_interrupt
            assert not is_charged or (cause.is_crash and self.attempts < ATTEMPTS_MAX)
            self.not_before = None
        self.left(now, is_charged=is_charged)
        self.dead |= dead
