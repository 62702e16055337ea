"""Statements about parts of outputs: who writes one, and what was written.

The UPDATE that takes a part raises its term. Every write of its owner is guarded by the term; `False` means
that the lease is lost and the write is void.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    bindparam,
    case,
    func,
    or_,
    select,
    text,
    tuple_,
    update,
)

from nightshift.jobs import Job, JobKind, JobState
from nightshift.jobs.leases import Term
from nightshift.jobs.part import (
    OutputPart,
    OutputProblem,
    PartClaim,
    PartFile,
    PartLease,
    PartProblem,
    PartState,
    PartUpload,
)
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row
from nightshift.store.jobs.jobs import ACTIVE_STATES, to_job
from nightshift.store.shards.cuts import note_written

job = tables.job
part = tables.output_part

JOBS_LOOKED_AT_MAX = 8  # another claimer may have just taken the first ones' last part
WRITING_STATES = (JobState.RUNNING, JobState.FINALIZING)  # states of jobs with parts to write

LEASED = text(tables.PART_LEASED)  # the indexes' own words: with parameters SQLite does not use them
_WITH_UPLOADS = text(tables.PART_WITH_UPLOADS)
WITH_PROBLEM = text(tables.PART_WITH_PROBLEM)


class Parts(Statements):
    # -- claiming --------------------------------------------------------------------------------------

    def claim(
        self, owner: str, now: datetime, ttl_s: float, *, of_idle_tenants: bool = False
    ) -> PartClaim | None:
        """Leases a part of the tenant with the fewest leased; among its jobs, those that wait for nothing but
        their output first, the longest waiting first. `of_idle_tenants`: only of tenants with none leased.
        """
        for candidate in self._best_jobs(now, of_idle_tenants=of_idle_tenants):
            taken = self._execute(
                _TAKE_NEXT,
                {
                    "of": candidate.id,
                    "moment": now,
                    "taker": owner,
                    "until": now + timedelta(seconds=ttl_s),
                },
            ).one_or_none()
            if taken is not None:
                return PartClaim(_to_lease(taken), to_part(taken), candidate)
        return None

    # -- writes under a lease --------------------------------------------------------------------------

    def renew(self, held: Sequence[PartLease], now: datetime, ttl_s: float) -> Sequence[PartLease]:
        """Extends these leases. Returns those that were held, with their new end; the others are lost."""
        if not held:
            return []
        return self._all(
            update(part)
            .where(
                tuple_(part.c.id, part.c.term).in_([(lease.part_id, lease.term) for lease in held]),
                part.c.state == PartState.LEASED,
            )
            .values(lease_expires_at=now + timedelta(seconds=ttl_s))
            .returning(part.c.id, part.c.job_id, part.c.term, part.c.owner, part.c.lease_expires_at),
            _to_lease,
        )

    def record_uploads(self, lease: PartLease, uploads: Sequence[PartUpload]) -> bool:
        """Replaces what is recorded of the files begun for a part: before any of their bytes are sent, and
        again once they are staged. Uploads left out were discarded. False: the lease is lost.
        """
        return self._update_held(lease, uploads=[upload.to_json() for upload in uploads] or None)

    def record_written(self, lease: PartLease, files: Sequence[PartFile]) -> bool:
        """The part's files lie at their place. False: the lease is lost."""
        holds = self._release(
            lease,
            state=PartState.WRITTEN,
            uploads=None,
            problem=None,
            files=[file.to_json() for file in files],
            rows=sum(file.rows for file in files),
            succeeded=sum(file.succeeded for file in files),
            failed=sum(file.failed for file in files),
        )
        if holds:
            note_written(self._connection, lease.job_id)
        return holds

    def hand_back(
        self,
        lease: PartLease,
        not_before: datetime | None = None,
        problem: PartProblem | None = None,
        *,
        is_charged: bool = False,
    ) -> bool:
        """Lets another process claim the part, from `not_before` on. What is recorded of its uploads stays.
        Only a charged attempt counts. False: the lease is lost.
        """
        return self._release(
            lease,
            state=PartState.READY,
            attempts=part.c.attempts - int(not is_charged),
            not_before=not_before,
            problem=None if problem is None else problem.to_json(),
        )

    def reopen(self, job_id: str, first_shards: Collection[int]) -> int:
        """Lets written parts of a job be written again, whose files are gone. Returns their number."""
        return self._execute(
            update(part)
            .where(
                part.c.job_id == job_id,
                part.c.first_shard.in_(first_shards),
                part.c.state == PartState.WRITTEN,
            )
            .values(state=PartState.READY, files=None, rows=0, succeeded=0, failed=0, not_before=None)
        ).rowcount

    # -- reading ---------------------------------------------------------------------------------------

    def of_job(self, job_id: str, *, after: int = -1, limit: int) -> Sequence[OutputPart]:
        """A page of a job's parts in the order of the input. `after`: the first shard of the last one."""
        return self._all(
            select(part)
            .where(part.c.job_id == job_id, part.c.first_shard > after)
            .order_by(part.c.first_shard)
            .limit(limit),
            to_part,
        )

    def at(self, job_id: str, first_shard: int) -> OutputPart | None:
        """The job's part that begins with this shard."""
        page = self.of_job(job_id, after=first_shard - 1, limit=1)
        return page[0] if page and page[0].first_shard == first_shard else None

    def states(self, job_id: str) -> Counter[PartState]:
        """A job's parts per state."""
        rows = self._execute(
            select(part.c.state, func.count()).where(part.c.job_id == job_id).group_by(part.c.state)
        )
        return Counter({PartState(state): count for state, count in rows})

    def problem(self, job_id: str) -> OutputProblem | None:
        """A problem of a part that is still to be written: a permanent one, or the next that is tried again.

        Not more than two are read, however many parts wait for the same place.
        """
        last = self._problem(job_id, part.c.not_before.desc())  # one that is never tried again is the last
        return last if last is None or last.problem.is_permanent else self._problem(job_id, part.c.not_before)

    def _problem(self, job_id: str, order: ColumnElement[Any]) -> OutputProblem | None:
        row = self._execute(
            select(part.c.problem, part.c.not_before)
            .where(part.c.job_id == job_id, WITH_PROBLEM)
            .order_by(order)
            .limit(1)
        ).one_or_none()
        if row is None:
            return None
        problem = PartProblem.from_json(row.problem)
        return OutputProblem(problem, None if problem.is_permanent else row.not_before)

    def has_open(self, job_id: str) -> bool:
        """Whether a part of the job is still to be written."""
        wanted = select(part.c.id).where(part.c.job_id == job_id, part.c.state.in_(_OPEN)).limit(1)
        return self._execute(wanted).one_or_none() is not None

    # -- the service's own duties, over all tenants ----------------------------------------------------

    def has_expired(self, now: datetime) -> bool:
        """Whether `expire` would find any."""
        wanted = select(part.c.id).where(LEASED, part.c.lease_expires_at <= now).limit(1)
        return self._execute(wanted).one_or_none() is not None

    def expire(self, now: datetime) -> int:
        """Lets parts be claimed again whose lease has expired. Returns their number."""
        # An owner that renews at this moment keeps its part. SQLite's writers take turns anyway.
        expired = (
            select(part.c.id).where(LEASED, part.c.lease_expires_at <= now).with_for_update(skip_locked=True)
        )
        return self._execute(
            update(part)
            .where(part.c.id.in_(expired), part.c.state == PartState.LEASED)
            .values(state=PartState.READY, owner=None, lease_expires_at=None)
        ).rowcount

    def has_claimable(self, now: datetime) -> bool:
        """Whether `claim` may find a part."""
        wanted = (
            select(part.c.id)
            .join(job, job.c.id == part.c.job_id)
            .where(job.c.kind == JobKind.BULK, job.c.state.in_(WRITING_STATES), *claimable(now))
            .limit(1)
        )
        return self._execute(wanted).one_or_none() is not None

    def unwritable(self) -> set[str]:
        """Ids of running jobs with a part that no trying again would write."""
        last = (
            select(part.c.problem)
            .where(part.c.job_id == job.c.id, WITH_PROBLEM)
            .order_by(part.c.not_before.desc())  # one that is never tried again is the last
            .limit(1)
            .correlate(job)
            .scalar_subquery()
        )
        rows = self._execute(
            select(job.c.id, last.label("problem")).where(
                job.c.kind == JobKind.BULK, job.c.state == JobState.RUNNING, job.c.stop_reason.is_(None)
            )
        )
        return {id for id, problem in rows if problem and PartProblem.from_json(problem).is_permanent}

    def open_uploads(self) -> set[str]:
        """Ids of all uploads that unfinished jobs may still publish."""
        rows = self._execute(
            select(part.c.uploads)
            .join(job, job.c.id == part.c.job_id)
            .where(_WITH_UPLOADS, job.c.state.in_(ACTIVE_STATES))
        )
        return {upload["upload_id"] for uploads in rows.scalars() for upload in uploads}

    # --------------------------------------------------------------------------------------------------

    def _best_jobs(self, now: datetime, *, of_idle_tenants: bool) -> Sequence[Job]:
        in_flight = (
            select(part.c.tenant_id, func.count().label("parts"))
            .where(LEASED)
            .group_by(part.c.tenant_id)
            .subquery()
        )
        return self._all(
            select(job)
            .outerjoin(in_flight, in_flight.c.tenant_id == job.c.tenant_id)
            .where(
                job.c.kind == JobKind.BULK,
                job.c.state.in_(WRITING_STATES),
                select(part.c.id).where(part.c.job_id == job.c.id, *claimable(now)).exists(),
                *((in_flight.c.parts.is_(None),) if of_idle_tenants else ()),
            )
            .order_by(
                func.coalesce(in_flight.c.parts, 0),
                case((job.c.state == JobState.FINALIZING, 0), else_=1),
                func.coalesce(job.c.finalizing_at, job.c.created_at),
                job.c.id,
            )
            .limit(JOBS_LOOKED_AT_MAX),
            to_job,
        )

    def _release(self, lease: PartLease, **values: Any) -> bool:
        return self._update_held(lease, owner=None, lease_expires_at=None, **values)

    def _update_held(self, lease: PartLease, **values: Any) -> bool:
        """An UPDATE guarded by the lease's term."""
        return self._changes_one(
            update(part)
            .where(
                part.c.id == lease.part_id,
                part.c.term == lease.term,
                part.c.state == PartState.LEASED,
            )
            .values(**values)
        )


_OPEN = tuple(state for state in PartState if not state.is_terminal)


def claimable(now: Any) -> tuple[ColumnElement[bool], ...]:
    return (part.c.state == PartState.READY, or_(part.c.not_before.is_(None), part.c.not_before <= now))


_TAKE_NEXT = (
    update(part)
    .where(
        part.c.id
        == select(part.c.id)
        .where(part.c.job_id == bindparam("of"), *claimable(bindparam("moment")))
        .order_by(part.c.first_shard)
        .limit(1)
        .with_for_update(skip_locked=True)  # SQLite, with one writer at a time, omits it
        .scalar_subquery(),
        part.c.state == PartState.READY,
    )
    .values(
        state=PartState.LEASED,
        term=part.c.term + 1,
        attempts=part.c.attempts + 1,
        owner=bindparam("taker"),
        lease_expires_at=bindparam("until"),
    )
    .returning(part)
)


def to_part(row: Row[Any]) -> OutputPart:
    return from_row(
        OutputPart,
        row,
        state=PartState(row.state),
        term=Term(row.term),
        uploads=tuple(PartUpload.from_json(upload) for upload in row.uploads or ()),
        files=tuple(PartFile.from_json(file) for file in row.files or ()),
        problem=None if row.problem is None else PartProblem.from_json(row.problem),
    )


def _to_lease(row: Row[Any]) -> PartLease:
    return from_row(PartLease, row, part_id=row.id, term=Term(row.term), expires_at=row.lease_expires_at)
