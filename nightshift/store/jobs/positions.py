"""Statements about places in the queue: how many runnable jobs sort before a queued one."""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import (
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
from nightshift.store.databases.database import Statements

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


class Positions(Statements):
    def places(self, jobs: Sequence[Job]) -> Mapping[str, int]:
        """The place of each of these queued jobs among all tenants' of its kind, from 1 to `POSITION_MAX`, by
        id. The queue is read once for all of one kind and class.
        """
        places: dict[str, int] = {}
        for kind, priority in {(job.kind, job.priority) for job in jobs}:
            alike = [job for job in jobs if (job.kind, job.priority) == (kind, priority)]
            alike.sort(key=attrgetter("created_at"))
            values = {"of_kind": kind, "rank": priority.rank, "before": alike[0].created_at}
            place: int = self._execute(_AHEAD, values).scalar_one() + 1
            between = deque(self._created_between(alike) if len(alike) > 1 else ())
            for queued in alike:
                while between and between[0][0] < queued.created_at:
                    place += between.popleft()[1]
                places[queued.id] = min(place, POSITION_MAX)
        return places

    def _created_between(self, alike: Sequence[Job]) -> Sequence[tuple[datetime, int]]:
        """The times at which runnable jobs of the same kind and class were created, from the first of these
        to the last, and the number at each time.
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
        return [(at, count) for at, count in self._execute(_CREATED_BETWEEN, values)]
