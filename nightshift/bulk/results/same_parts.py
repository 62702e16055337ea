"""Parts whose files an earlier run has written: the same shards of the same objects, by the same plan.

The files are copied by the store, and no result is read. Only for Parquet without `body`: lines and bodies
have the ids of their run.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from nightshift.bulk.results.part_encoding import PARQUET
from nightshift.jobs import Job, JobSpec, Shard, ShardState
from nightshift.jobs.part import OutputPart, PartClaim, PartFile, PartState
from nightshift.store import Store, Transaction

SHARDS_PAGE: Final = 200


@dataclass(frozen=True)
class SamePart:
    """What an earlier job has of a part."""

    job: Job
    part: OutputPart

    @property
    def file(self) -> PartFile:
        (file,) = self.part.files
        return file


def same_part(store: Store, claim: PartClaim) -> SamePart | None:
    """The part of the reused job that has the same rows with the same answers, if there is one."""
    job, part = claim.job, claim.part
    if job.spec.reused_job is None or job.spec.format != PARQUET or job.spec.options.keep_body:
        return None
    with store.snapshot() as tx:
        earlier = tx.jobs.get(job.tenant_id, job.spec.reused_job)
        if earlier is None or _plan(earlier.spec) != _plan(job.spec) or earlier.model != job.model:
            return None
        found = tx.parts.at(earlier.id, part.first_shard)
        if found is None or not _is_whole(found) or found.last_shard != part.last_shard:
            return None
        if found.rows != tx.shards.rows_earlier(job.id, part.first_shard, part.last_shard):
            return None
    pairs = zip_longest(_shards(store, job.id, part), _shards(store, earlier.id, part))
    return SamePart(earlier, found) if all(_is_same(new, old) for new, old in pairs) else None


def _plan(spec: JobSpec) -> tuple[object, ...]:
    """What decides about a row's place, its id, and what its part says of it."""
    template = json.dumps(spec.template)  # with the order of its fields
    return (spec.endpoint, template, spec.id_column, spec.format, spec.options.of_parts(), spec.kept_in)


def _is_whole(part: OutputPart) -> bool:
    """Whether it is written, of good rows alone."""
    return part.state is PartState.WRITTEN and part.failed == 0 and len(part.files) == 1


def _is_same(new: Shard | None, old: Shard | None) -> bool:
    if new is None or old is None:  # the earlier job was deleted meanwhile
        return False

    def of(shard: Shard) -> tuple[object, ...]:
        place = (shard.format, shard.start, shard.end, shard.sources)
        return (shard.shard_no, shard.state, shard.first_row, shard.rows_total, *place)

    return of(new) == of(old) and new.state is ShardState.DONE and _is_pinned(new)


def _is_pinned(shard: Shard) -> bool:
    return all(each.etag is not None for each in shard.sources)


def _shards(store: Store, job_id: str, part: OutputPart) -> Iterator[Shard]:
    last_no = part.first_shard - 1
    while last_no < part.last_shard:
        with store.snapshot() as tx:
            page = _page(tx, job_id, last_no, part.last_shard)
        yield from page
        if not page:
            return
        last_no = page[-1].shard_no


def _page(tx: Transaction, job_id: str, after_no: int, last_no: int) -> list[Shard]:
    limit = min(SHARDS_PAGE, last_no - after_no)
    return list(tx.shards.of_job(job_id, after_no=after_no, limit=limit))
