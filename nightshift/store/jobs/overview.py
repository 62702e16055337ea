"""Statements that sum up a tenant's unfinished jobs for a person."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import case, func, select, union_all

from nightshift.jobs import JobKind, JobState
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.store.databases.database import Statements

job = tables.job

COUNTED_MAX: Final = 1000  # jobs of a state, the oldest first: a page is the same work for any queue
_UNFINISHED: Final = tuple(state for state in JobState if not state.is_terminal)


@dataclass(frozen=True)
class QueueGroup:
    """Unfinished jobs of one kind, class and model. `rows_left`: of the bulk jobs whose rows are counted."""

    priority: PriorityClass
    model: str | None  # None: the input has not been read
    kind: JobKind
    queued: int
    running: int  # or finalizing
    paused: int  # queued or running
    rows_left: int


@dataclass(frozen=True)
class Unfinished:
    """`is_whole`: whether every job is counted, rather than `COUNTED_MAX` of a state."""

    groups: Sequence[QueueGroup]
    is_whole: bool

    @property
    def queued(self) -> int:
        return sum(group.queued for group in self.groups)

    @property
    def running(self) -> int:
        return sum(group.running for group in self.groups)

    @property
    def rows_left(self) -> int:
        return sum(group.rows_left for group in self.groups)


class Overview(Statements):
    def unfinished(self, tenant_id: str) -> Unfinished:
        """The best class first, then by model."""
        expected = func.coalesce(job.c.rows_total, job.c.rows_estimated, 0)
        left = expected - job.c.rows_succeeded - job.c.rows_failed
        pages = [
            select(
                job.c.priority_rank,
                job.c.priority,
                job.c.model,
                job.c.kind,
                job.c.state,
                job.c.paused_at,
                case((job.c.kind == JobKind.BULK, left), else_=0).label("left"),
            )
            .where(job.c.tenant_id == tenant_id, job.c.state == state, job.c.deleted_at.is_(None))
            .order_by(job.c.created_at, job.c.id)
            .limit(COUNTED_MAX)
            .subquery()
            for state in _UNFINISHED
        ]
        counted = union_all(*(select(page) for page in pages)).subquery()
        is_queued = counted.c.state == JobState.QUEUED
        group = (counted.c.priority_rank, counted.c.priority, counted.c.model, counted.c.kind)
        queued, running = func.count(case((is_queued, 1))), func.count(case((~is_queued, 1)))
        rows = self._execute(
            select(*group, queued, running, func.count(counted.c.paused_at), func.sum(counted.c.left))
            .group_by(*group)
            .order_by(counted.c.priority_rank, counted.c.model, counted.c.kind)
        ).all()
        groups = [
            QueueGroup(
                PriorityClass(priority), model, JobKind(kind), queued, running, paused, max(0, int(left or 0))
            )
            for _, priority, model, kind, queued, running, paused, left in rows
        ]
        most = max(sum(jobs.queued for jobs in groups), sum(jobs.running for jobs in groups))
        return Unfinished(groups, most < COUNTED_MAX)
