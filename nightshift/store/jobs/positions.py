"""Statements about places in the queue: how many runnable jobs sort before a queued one."""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Integer,
    Select,
    bindparam,
    func,
    literal,
    select,
    text,
    tuple_,
)

from nightshift.jobs import Job
from nightshift.store import tables

job = tables.job

POSITION_MAX: Final = 10_001  # this place or a later one: no queue is counted further

_IS_QUEUED: Final = (
    job.c.kind == bindparam("of_kind"),
    text(tables.IN_QUEUE),  # the index's own words: with parameters SQLite does not use it
)
_IS_BEFORE: Final = tuple_(job.c.priority_rank, job.c.created_at) < tuple_(
    bindparam("rank", type_=Integer), bindparam("before", type_=tables.UtcTimestamp)
)


def _counted(statement: Select[Any]) -> Select[Any]:
    return select(func.count()).select_from(statement.subquery())


_AHEAD: Final = _counted(
    select(literal(1).label("one"))
    .select_from(job)
    .where(*_IS_QUEUED, _IS_BEFORE)
    .order_by(job.c.priority_rank, job.c.created_at)  # has SQLite choose the index in this order
    .limit(POSITION_MAX - 1)
)

_BETWEEN: Final = (
    select(job.c.created_at)
    .where(
        *_IS_QUEUED,
        job.c.priority_rank == bindparam("rank"),
        job.c.created_at >= bindparam("since"),
        job.c.created_at < bindparam("before"),
    )
    .order_by(job.c.created_at)
    .limit(POSITION_MAX)
    .subquery()
)
_CREATED_BETWEEN: Final = (
    select(_BETWEEN.c.created_at, func.count())
    .group_by(_BETWEEN.c.created_at)
    .order_by(_BETWEEN.c.created_at)
)


class Positions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of(self, jobs: Sequence[Job]) -> Mapping[str, int]:
        """The place of each of these queued jobs among all tenants' of its kind, from 1 to `POSITION_MAX`, by
        id. The queue is read once for all of one kind and class.
        """
        found: dict[str, int] = {}
        for kind, priority in {(one.kind, one.priority) for one in jobs}:
            alike = sorted(
                (one for one in jobs if (one.kind, one.priority) == (kind, priority)),
                key=lambda one: one.created_at,
            )
            place, between = self._first(alike[0]), deque(self._created_between(alike))
            for one in alike:
                while between and between[0][0] < one.created_at:
                    place += between.popleft()[1]
                found[one.id] = min(place, POSITION_MAX)
        return found

    def _first(self, of: Job) -> int:
        values = {"of_kind": of.kind, "rank": of.priority.rank, "before": of.created_at}
        ahead: int = self._connection.execute(_AHEAD, values).scalar_one()
        return ahead + 1

    def _created_between(self, alike: Sequence[Job]) -> Sequence[tuple[datetime, int]]:
        """When runnable jobs of the same kind and class were created, from the first of these to the last,
        and how many at a time.
        """
        first, last = alike[0], alike[-1]
        if first.created_at == last.created_at:
            return ()
        values = {
            "of_kind": first.kind,
            "rank": first.priority.rank,
            "since": first.created_at,
            "before": last.created_at,
        }
        return [(at, count) for at, count in self._connection.execute(_CREATED_BETWEEN, values)]
