"""A store and the model of it, side by side: what the steps in `test_lease_machine.py` share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant
from sqlalchemy import Row, select

from nightshift.errors import Conflict
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job, JobKind, JobState, Segment, ShardState, carry_over_key
from nightshift.jobs.leases import Lease
from nightshift.lifecycle import transitions
from nightshift.store import Store, Transaction, tables
from nightshift.store.databases.database import Database
from nightshift.store.shards.leases import ExpiredLease
from tests.helpers.databases import emptied
from tests.helpers.fakes import FakeClock
from tests.integration.store.shards.lease_model import ModelJob, ModelShard

LATE_MAX = 2  # old leases among which one is chosen, beside those that hold


class LeaseGround(RuleBasedStateMachine):
    database: Database  # one for all runs: its compiled statements are kept with it

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.store = Store(emptied(self.database), clock=self.clock)
        self.jobs: dict[str, Job] = {}
        self.shards: dict[str, ModelShard] = {}
        self.leases: list[Lease] = []  # every one there ever was
        self.thought_lost: list[ExpiredLease] = []
        self.numbers = count()

    # -- what is true after every step -----------------------------------------------------------------

    @invariant()
    def the_database_says_the_same(self) -> None:
        with self.database.read() as connection:
            shards = connection.execute(select(tables.shard)).all()
            segments = connection.execute(select(tables.segment).order_by(tables.segment.c.id)).all()
            answers = connection.execute(select(tables.result)).all()
            jobs = connection.execute(select(tables.job)).all()
            dead = connection.execute(select(tables.dead_row)).all()
        self.check_leases(shards)
        assert {(row.shard_id, row.row) for row in dead} == {
            (shard.id, row) for shard in self.shards.values() for row in shard.dead
        }
        self.check_rows(segments, answers)
        self.check_jobs(jobs)

    def check_leases(self, rows: Sequence[Row[Any]]) -> None:
        """One holder a shard, terms that only rise, attempts without interruptions, the latest carry-over."""
        by_id = {row.id: row for row in rows}
        for id, shard in self.shards.items():
            row = by_id.pop(id)
            said = (row.state, row.term, row.attempts, row.rows_done, row.carry_over_key)
            assert said == (shard.state, shard.term, shard.attempts, shard.rows, shard.carry_over)
            if shard.is_held:
                assert (row.worker_id, row.lease_until) == (shard.holder, shard.expires_at)
        assert not by_id

    def check_rows(self, segments: Sequence[Row[Any]], answers: Sequence[Row[Any]]) -> None:
        """Listed rows stay listed, answers stay, and there is nothing else."""
        for shard in self.shards.values():
            of_shard = [(one.key, one.succeeded + one.failed) for one in segments if one.shard_id == shard.id]
            assert of_shard == shard.segments
        expected = {shard.id: shard.answer for shard in self.shards.values() if shard.answer is not None}
        assert {answer.shard_id: answer.body for answer in answers} == expected

    def check_jobs(self, jobs: Sequence[Row[Any]]) -> None:
        """They end once, as they should, and every row is counted once."""
        for job in jobs:
            shards = [shard for shard in self.shards.values() if shard.job.id == job.id]
            ended = job.state if JobState(job.state).is_terminal else None
            of_job = shards[0].job
            assert ended == of_job.ended_as
            assert (job.paused_at is not None, job.priority_rank) == (of_job.is_paused, of_job.priority)
            if job.kind == JobKind.BULK or ended == JobState.SUCCEEDED:
                assert job.rows_succeeded + job.rows_failed == sum(shard.rows for shard in shards)

    # -- what the rules are made of --------------------------------------------------------------------

    def accepted(self, job: Job) -> None:
        spec = job.spec
        about = ModelJob(
            job.id,
            job.tenant_id,
            job.kind,
            spec.capacity,
            spec.retry_on_interrupt,
            priority=job.priority.rank,
        )
        self.jobs[job.id] = job
        self.clock.advance(seconds=1)  # no two have the same age, so no order depends on an id
        with self.store.snapshot() as tx:
            self.shards |= {
                shard.id: ModelShard(shard.id, about) for shard in tx.shards.of_job(job.id, limit=10)
            }

    def claimable(self, kind: JobKind, worker: str) -> set[str]:
        return {
            shard.id
            for shard in self.shards.values()
            if shard.job.kind is kind and shard.may_be_claimed(worker, self.clock.now)
        }

    def got(self, leases: Sequence[Lease]) -> None:
        for lease in sorted(leases, key=lambda lease: list(self.shards).index(lease.shard_id)):
            self.shard(lease).claimed(lease)
            self.leases.append(lease)

    def commits(self, lease: Lease, segment: Segment | None, carry_over: str | None) -> bool:
        with self.store.transaction() as tx:
            return transitions.commit_segment(
                tx, lease, segment, tx.now(), rows_total=None, carry_over_key=carry_over
            )

    def leaves(
        self,
        lease: Lease,
        how: Callable[[Transaction], bool],
        state: ShardState = ShardState.QUEUED,
        *,
        is_charged: bool = True,
    ) -> bool:
        shard = self.shard(lease)
        with self.store.transaction() as tx:
            left = how(tx)
        assert left == shard.is_held_under(lease)
        if left:
            shard.left(state, is_charged=is_charged)
        return left

    def lost(self, shards: Sequence[ModelShard], causes: Mapping[str, ExitCause] = {}) -> None:
        """These were recovered; what became of them is in the database."""
        for shard in shards:
            with self.store.snapshot() as tx:
                after = tx.shards.get(shard.job.tenant_id, shard.id)
                dead = tx.dead_letters.crash_history(shard.id, crashes=1).dead
            assert after is not None
            cause = causes.get(shard.holder or "", ExitCause.LEASE_EXPIRED)
            shard.lost_its_worker(cause, after.state, after.attempts, dead)

    def about(self, job: Job) -> ModelJob:
        return next(shard.job for shard in self.shards.values() if shard.job.id == job.id)

    @contextmanager
    def controlled(self, may: bool) -> Iterator[Transaction]:
        """A transaction in which an owner's order succeeds, or is refused as a conflict."""
        with nullcontext() if may else pytest.raises(Conflict), self.store.transaction() as tx:
            yield tx

    def any_lease(self, kind: JobKind) -> bool:
        return any(self.shard(lease).job.kind is kind for lease in self.leases)

    def lease(self, which: int, kind: JobKind | None = None, *, is_stopped: bool = False) -> Lease:
        """One that holds its shard, or one of the latest that do not any more."""
        wanted = [
            lease
            for lease in reversed(self.leases)
            if kind in (None, self.shard(lease).job.kind) and self.shard(lease).job.is_stopped >= is_stopped
        ]
        held = [lease for lease in wanted if self.shard(lease).is_held_under(lease)]
        late = [lease for lease in wanted if lease not in held]
        choice = held + late[:LATE_MAX]
        return choice[which % len(choice)]

    def shard(self, lease: Lease) -> ModelShard:
        return self.shards[lease.shard_id]

    def new_carry_over(self, lease: Lease) -> str:
        return carry_over_key(lease, 0, next(self.numbers), "0" * 64)
