"""Statements that cut a job's ended shards into parts of its output.

What was cut before is not looked at again: the shards that may be cut have an index of their own.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, bindparam, insert, or_, select, text, update

from nightshift.jobs import Face, Job, JobKind, JobState, ShardState
from nightshift.jobs.ids import new_id
from nightshift.jobs.part import CutShard, NewPart, PartState
from nightshift.store import tables
from nightshift.store.databases.database import Statements

shard = tables.shard
output_part = tables.output_part
job = tables.job

NEIGHBOURS_PER_QUERY: Final = 500
WITH_PARTS: Final = (JobState.RUNNING, JobState.FINALIZING)

_TO_CUT = text(tables.TO_CUT)  # the index's own words: with parameters SQLite does not use it

_NOTE_ENDED = (
    update(job).where(job.c.id == bindparam("of")).values(shards_ended=job.c.shards_ended + bindparam("more"))
)
_NOTE_WRITTEN = (
    update(job)
    .where(job.c.id == bindparam("of"))
    .values(parts_written=job.c.parts_written + bindparam("more"))
)


@dataclass(frozen=True)
class CutPage:
    """Shards that may be cut, and their neighbours."""

    shards: Sequence[CutShard]
    is_full: bool  # there may be more


@dataclass(frozen=True)
class OutputProgress:
    """Whether there may be something to cut or to list: any of these has changed then."""

    is_running: bool
    is_complete: bool  # there will be no more shards
    shards_ended: int
    parts_written: int


def note_ended(connection: Connection, job_id: str, shards: int = 1) -> None:
    """Lets the job's ended shards be looked at. In a worker's transaction before anything that locks a shard:
    opposite orders would deadlock. Without it a shard waits for the next one that ends, or for the job's end.
    """
    connection.execute(_NOTE_ENDED, {"of": job_id, "more": shards})


def note_written(connection: Connection, job_id: str, parts: int = 1) -> None:
    """Lets the job's manifest be written again."""
    connection.execute(_NOTE_WRITTEN, {"of": job_id, "more": parts})


class Cuts(Statements):
    def page(self, job_id: str, *, after_no: int = -1, limit: int) -> CutPage:
        """A page of a job's ended shards in no part, with the shards beside them, in order.

        Of a neighbour only says whether it is in a part; one that has ended and is not counts as one that
        will.
        """
        rows = self._execute(
            select(
                shard.c.shard_no,
                shard.c.state,
                shard.c.rows_done,
                shard.c.rows_total,
                shard.c.rows_estimated,
                shard.c.result_bytes,
            )
            .where(shard.c.job_id == job_id, shard.c.shard_no > after_no, _TO_CUT)
            .order_by(shard.c.shard_no)
            .limit(limit)
        ).all()
        free = [
            CutShard(
                row.shard_no,
                True,
                False,
                _rows_of(row.state, row.rows_done, row.rows_total, row.rows_estimated),
                row.result_bytes,
            )
            for row in rows
        ]
        beside = {number + step for number in (one.shard_no for one in free) for step in (-1, 1)}
        neighbours = self._neighbours(job_id, beside - {one.shard_no for one in free})
        return CutPage(sorted((*free, *neighbours), key=lambda one: one.shard_no), is_full=len(rows) == limit)

    def assign(self, job_id: str, part: NewPart) -> bool:
        """Puts a part's shards in it. False: not all of them had ended and were free; then roll back."""
        return (
            self._execute(
                update(shard)
                .where(
                    shard.c.job_id == job_id,
                    shard.c.shard_no.between(part.first_shard, part.last_shard),
                    _TO_CUT,
                )
                .values(part_first_shard=part.first_shard)
            ).rowcount
            == part.shards
        )

    def insert(self, job: Job, parts: Sequence[NewPart], now: datetime) -> None:
        """Records parts, ready to be claimed. One without rows is written: it has no files."""
        rows = [
            {
                "id": new_id("part"),
                "job_id": job.id,
                "tenant_id": job.tenant_id,
                "first_shard": part.first_shard,
                "last_shard": part.last_shard,
                "state": PartState.READY if part.rows else PartState.WRITTEN,
                "created_at": now,
            }
            for part in parts
        ]
        if rows:
            self._execute(insert(output_part), rows)
        written = sum(row["state"] == PartState.WRITTEN for row in rows)
        if written:
            note_written(self._connection, job.id, written)

    def under_way(self) -> Mapping[str, OutputProgress]:
        """The progress of every native job whose output is being written, read from a row of each job."""
        rows = self._execute(
            select(
                job.c.id,
                job.c.state,
                or_(job.c.planned_at.is_not(None), job.c.stop_reason.is_not(None)).label("is_complete"),
                job.c.shards_ended,
                job.c.parts_written,
            ).where(job.c.kind == JobKind.BULK, job.c.face == Face.NATIVE, job.c.state.in_(WITH_PARTS))
        )
        return {
            row.id: OutputProgress(
                is_running=row.state == JobState.RUNNING,
                is_complete=bool(row.is_complete),
                shards_ended=row.shards_ended,
                parts_written=row.parts_written,
            )
            for row in rows
        }

    def has_uncut(self, job_id: str) -> bool:
        """Whether an ended shard of the job is in no part."""
        # In order, so that SQLite takes the index of those, and not the one of states.
        free = select(shard.c.shard_no).where(shard.c.job_id == job_id, _TO_CUT).order_by(shard.c.shard_no)
        return self._execute(free.limit(1)).one_or_none() is not None

    def _neighbours(self, job_id: str, numbers: Collection[int]) -> Iterator[CutShard]:
        wanted = sorted(numbers)
        for first in range(0, len(wanted), NEIGHBOURS_PER_QUERY):
            some = wanted[first : first + NEIGHBOURS_PER_QUERY]
            rows = self._execute(
                select(shard.c.shard_no, shard.c.part_first_shard).where(
                    shard.c.job_id == job_id, shard.c.shard_no.in_(some)
                )
            )
            for row in rows:
                yield CutShard(row.shard_no, is_ended=False, is_assigned=row.part_first_shard is not None)


def _rows_of(state: str, done: int, total: int | None, estimated: int | None) -> int:
    """A shard's rows. One that was stopped before its rows were counted may have some: at least 1."""
    if total is not None:
        return total
    return max(done, estimated or 0, int(state != ShardState.DONE))
