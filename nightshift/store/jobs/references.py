"""Statements that find references to objects, before the objects are collected. Over all tenants."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import select

from nightshift.jobs import Face, JobKind, ShardState
from nightshift.jobs.leases import Term
from nightshift.store import tables
from nightshift.store.databases.database import Statements
from nightshift.store.databases.planner_hints import unindexed
from nightshift.store.jobs.jobs import ACTIVE_STATES

shard = tables.shard


@dataclass(frozen=True)
class ShardReferences:
    """A shard's state and the objects it refers to."""

    state: ShardState
    term: Term
    carry_over_key: str | None
    listed: frozenset[str]  # listed keys among those asked about


class References(Statements):
    def of_shards(
        self, places: Collection[tuple[str, int]], keys: Collection[str]
    ) -> Mapping[tuple[str, int], ShardReferences]:
        """References of existing shards, by job id and shard number. Looks for `keys` among the segments."""
        rows = self._execute(
            select(
                shard.c.id,
                shard.c.job_id,
                shard.c.shard_no,
                shard.c.state,
                shard.c.term,
                shard.c.carry_over_key,
            ).where(
                shard.c.job_id.in_({job_id for job_id, _ in places}),
                shard.c.shard_no.in_({number for _, number in places}),
            )
        ).all()
        listed: dict[str, set[str]] = {}
        segments = self._execute(
            select(tables.segment.c.shard_id, tables.segment.c.key).where(
                tables.segment.c.shard_id.in_([row.id for row in rows]), tables.segment.c.key.in_(keys)
            )
        )
        for shard_id, key in segments:
            listed.setdefault(shard_id, set()).add(key)
        return {
            (row.job_id, row.shard_no): ShardReferences(
                ShardState(row.state), Term(row.term), row.carry_over_key, frozenset(listed.get(row.id, ()))
            )
            for row in rows
        }

    def unfinished_jobs(self, job_ids: Collection[str]) -> set[str]:
        """The unfinished ones among these jobs."""
        rows = self._execute(
            select(tables.job.c.id).where(
                tables.job.c.id.in_(job_ids), unindexed(tables.job.c.state).in_(ACTIVE_STATES)
            )
        )
        return set(rows.scalars())

    def jobs_with_results(self, job_ids: Collection[str]) -> set[str]:
        """Jobs among these whose results are not deleted."""
        job = tables.job
        rows = self._execute(
            select(job.c.id).where(
                job.c.id.in_(job_ids), job.c.results_deleted_at.is_(None), job.c.deleted_at.is_(None)
            )
        )
        return set(rows.scalars())

    def unfinished_batches(self) -> set[str]:
        """All unfinished jobs whose output will be files."""
        job = tables.job
        rows = self._execute(
            select(job.c.id).where(
                job.c.state.in_(ACTIVE_STATES), job.c.kind == JobKind.BULK, job.c.face == Face.OPENAI
            )
        )
        return set(rows.scalars())

    def files(self, file_ids: Collection[str]) -> set[str]:
        """The recorded ones among these files, also if expired."""
        rows = self._execute(select(tables.file.c.id).where(tables.file.c.id.in_(file_ids)))
        return set(rows.scalars())

    def upload_parts(self, part_ids: Collection[str]) -> set[str]:
        """The recorded ones among these parts of uploads."""
        part = tables.upload_part
        return set(self._execute(select(part.c.id).where(part.c.id.in_(part_ids))).scalars())
