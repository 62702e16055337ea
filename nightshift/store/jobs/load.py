"""Statements about waiting work, for admission."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import case, exists, func, select

from nightshift.jobs import JobKind, JobState, ShardState
from nightshift.store import tables
from nightshift.store.databases.database import Statements

job = tables.job
shard = tables.shard

_UNFINISHED = tuple(state for state in JobState if not state.is_terminal)
_BULK = (job.c.state.in_(_UNFINISHED), job.c.kind == JobKind.BULK, job.c.paused_at.is_(None))
_ROWS_DONE = job.c.rows_succeeded + job.c.rows_failed


@dataclass(frozen=True)
class Pace:
    """The pace of unfinished bulk jobs that are not paused."""

    rows_done: int  # all tenants'
    running_since: datetime | None  # when the first of these jobs started; None: none runs


class Load(Statements):
    def oldest_online(self) -> datetime | None:
        """The time at which the longest waiting online request was made."""
        oldest: datetime | None = self._execute(
            select(func.min(shard.c.enqueued_at)).where(
                shard.c.state == ShardState.QUEUED, shard.c.kind == JobKind.ONLINE
            )
        ).scalar_one()
        return oldest

    def has_unfinished(self, tenant_id: str) -> bool:
        """Whether a job of the tenant has not ended."""
        wanted = exists().where(job.c.tenant_id == tenant_id, job.c.state.in_(_UNFINISHED))
        return bool(self._execute(select(wanted)).scalar_one())

    def rows_left(self, model: str, rank: int) -> int:
        """The rows that bulk jobs of the model have left, as far as they are counted, in classes up to the
        rank; without paused jobs. Reads every unfinished bulk job.
        """
        left = func.coalesce(job.c.rows_total, job.c.rows_estimated, 0) - _ROWS_DONE
        return int(
            self._execute(
                select(func.coalesce(func.sum(case((left > 0, left), else_=0)), 0)).where(
                    *_BULK, job.c.model == model, job.c.priority_rank <= rank
                )
            ).scalar_one()
        )

    def bulk_pace(self) -> Pace:
        """Reads every unfinished bulk job: only for what is refused."""
        rows_done, running_since = self._execute(
            select(func.coalesce(func.sum(_ROWS_DONE), 0), func.min(job.c.started_at)).where(*_BULK)
        ).one()
        return Pace(int(rows_done), running_since)
