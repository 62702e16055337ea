"""Statements about a job's events, numbered without gaps so that streams can resume."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, bindparam, insert, select, text, update

from nightshift.jobs import JsonObject
from nightshift.store import tables
from nightshift.store.databases.database import Statements

event = tables.event
job = tables.job

# Built once: a request or a worker waits while SQLAlchemy builds a statement.

_INSERT = insert(event)

_NUMBER = (
    update(job)
    .where(job.c.id == bindparam("of"))
    .values(event_seq=job.c.event_seq + 1)
    .returning(job.c.event_seq)
)

FIRST_SEQ: Final = 1


@dataclass(frozen=True)
class Event:
    """`seq`: the event's number in its job, from 1."""

    seq: int
    type: str
    data: JsonObject
    created_at: datetime


class Events(Statements):
    def begin(self, job_id: str, type: str, data: JsonObject, now: datetime) -> None:
        """Adds the first event of a job inserted by this transaction; the job's row counts it already."""
        self._execute(_INSERT, event_row(job_id, type, data, now))

    def append(self, job_id: str, type: str, data: JsonObject, now: datetime) -> int:
        """Adds an event and returns its number.

        The number comes from the job's row, locked until the commit, so no reader sees number 6 appear after
        7.
        """
        seq: int = self._execute(_NUMBER, {"of": job_id}).scalar_one()
        self._execute(_INSERT, event_row(job_id, type, data, now, seq))
        return seq

    def last_seq(self, job_id: str) -> int:
        """The newest event's number."""
        wanted = select(job.c.event_seq).where(job.c.id == job_id)
        seq: int = self._execute(wanted).scalar_one()
        return seq

    def after(self, tenant_id: str, job_id: str, seq: int, limit: int) -> Sequence[Event]:
        """Events of a tenant's job after this number, in order."""
        return self._all(
            select(event)
            .join(job, job.c.id == event.c.job_id)
            .where(event.c.job_id == job_id, job.c.tenant_id == tenant_id, event.c.seq > seq)
            .order_by(event.c.seq)
            .limit(limit),
            _to_event,
        )

    def milestones(self, tenant_id: str, job_id: str, limit: int) -> Sequence[Event]:
        """The newest of a tenant's job's events that are neither checkpoints nor its states, in order."""
        newest = (
            select(event)
            .join(job, job.c.id == event.c.job_id)
            .where(event.c.job_id == job_id, job.c.tenant_id == tenant_id, text(tables.IS_MILESTONE))
            .order_by(event.c.seq.desc())
            .limit(limit)
        )
        return [_to_event(row) for row in reversed(self._execute(newest).all())]

    def at(self, tenant_id: str, job_id: str, seqs: Collection[int]) -> Sequence[Event]:
        """A tenant's job's events with these numbers, as far as they are kept, in order."""
        wanted = (
            select(event)
            .join(job, job.c.id == event.c.job_id)
            .where(event.c.job_id == job_id, job.c.tenant_id == tenant_id, event.c.seq.in_(seqs))
            .order_by(event.c.seq)
        )
        return self._all(wanted, _to_event)


def event_row(
    job_id: str, type: str, data: JsonObject, now: datetime, seq: int = FIRST_SEQ
) -> dict[str, Any]:
    """An event as a row, the first of its job without a number."""
    return {"job_id": job_id, "seq": seq, "type": type, "data": data, "created_at": now}


def _to_event(row: Row[Any]) -> Event:
    return Event(row.seq, row.type, row.data, row.created_at)
