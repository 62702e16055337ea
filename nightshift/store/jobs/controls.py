"""Statements that change an unfinished job on its owner's behalf.

False: it was stopping, finalizing or over.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, literal, or_, update

from nightshift.jobs import JobKind, JobSpec
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.jobs.jobs import RUNNABLE_STATES

job = tables.job


class Controls(Statements):
    def prioritise(self, tenant_id: str, job_id: str, priority: PriorityClass) -> bool:
        """The class of what is claimed from now on."""
        return self._update(tenant_id, job_id, priority=priority, priority_rank=priority.rank)

    def replace_spec(self, tenant_id: str, job_id: str, spec: JobSpec, more_bytes: int) -> bool:
        """Replaces the spec. Only its metadata may differ, by so many bytes, and the caller has locked the
        job.
        """
        stored_bytes = job.c.stored_bytes + more_bytes
        return self._update(tenant_id, job_id, spec=spec.to_json(), stored_bytes=stored_bytes)

    def pause(self, tenant_id: str, job_id: str, now: datetime) -> bool:
        """Lets no shard of a bulk job be claimed, whatever its window. False also of an online job, and of
        one that is so paused.
        """
        is_going_on = or_(job.c.paused_at.is_(None), job.c.window_turns_at.is_not(None))
        paused_at = func.coalesce(job.c.paused_at, literal(now, tables.UtcTimestamp))
        guards = (job.c.kind == JobKind.BULK, is_going_on)
        return self._update(tenant_id, job_id, *guards, paused_at=paused_at, window_turns_at=None)

    def resume(
        self, tenant_id: str, job_id: str, *, window_turns_at: datetime | None = None, is_open: bool = True
    ) -> bool:
        """Lets the shards of a job that `pause` paused be claimed again, if its window is open. False also of
        a job that is not so paused.
        """
        guards = (job.c.paused_at.is_not(None), job.c.window_turns_at.is_(None))
        values: dict[str, Any] = {"window_turns_at": window_turns_at, "urgent_at": None}
        values |= {"paused_at": None} if is_open else {}
        return self._update(tenant_id, job_id, *guards, **values)

    def _update(self, tenant_id: str, job_id: str, *guards: ColumnElement[bool], **values: Any) -> bool:
        return self._changes_one(
            update(job)
            .where(
                job.c.id == job_id,
                job.c.tenant_id == tenant_id,
                job.c.state.in_(RUNNABLE_STATES),
                job.c.stop_reason.is_(None),
                *guards,
            )
            .values(**values)
        )
