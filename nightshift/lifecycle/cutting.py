"""Cutting a job's ended shards into parts of its output, in the caller's open transaction, and what keeps
an output from being written.

Who claims a part and what was written of it: `nightshift/store/shards/parts.py`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.errors import Conflicted
from nightshift.jobs import Job, JobKind
from nightshift.jobs.part import CutLimits, CutShard, NewPart, OutputProblem, PartProblem, cut_parts
from nightshift.store import Store, Transaction

SHARDS_PER_CUT: Final = 2000  # looked at in one transaction …
PARTS_PER_CUT: Final = 200  # … and cut: writers wait for it


@dataclass(frozen=True)
class CutPass:
    """The result of cutting one page of a job's shards."""

    parts: int
    after_no: int | None  # where the next page begins; None: this was the last


def cut(
    tx: Transaction,
    job: Job,
    limits: CutLimits,
    now: datetime,
    *,
    is_complete: bool,
    after_no: int = -1,
) -> CutPass:
    """Makes parts of a page of the job's ended shards, as `cut_parts` decides.

    `is_complete`: no shards will be added to the job. Raises Conflicted where another scheduler cuts the same
    shards: nothing is changed, and `Store.run` tries again.
    """
    page = tx.cuts.page(job.id, after_no=after_no, limit=max(SHARDS_PER_CUT, limits.part_shards + 1))
    cuttable = cut_parts(page.shards, limits, is_complete=is_complete)
    parts = cuttable[:PARTS_PER_CUT]
    for part in parts:
        if not tx.cuts.assign(job.id, part):
            raise Conflicted
    tx.cuts.insert(job, parts, now)
    if len(parts) < len(cuttable):
        return CutPass(len(parts), parts[-1].last_shard)
    last_no = _before_last_run([shard for shard in page.shards if shard.is_free], parts)
    return CutPass(len(parts), last_no if page.is_full else None)


def is_written(tx: Transaction, job: Job) -> bool:
    """Whether every shard that has ended is in a part whose files lie at their place."""
    return not tx.cuts.has_uncut(job.id) and not tx.parts.has_open(job.id)


def record_problem(store: Store, job_id: str, problem: PartProblem | None) -> None:
    """Records why the job's manifest cannot be written at present. None: it can. Writes only what has
    changed.
    """
    with store.snapshot() as tx:
        before = tx.jobs.output_problem(job_id)
    if before != problem:
        with store.transaction() as tx:
            tx.jobs.record_output_problem(job_id, problem)


def problem_of(tx: Transaction, job: Job, now: datetime) -> OutputProblem | None:
    """The reason why the job's output cannot be written at present. A time of the next attempt is in the
    future.
    """
    if job.kind is not JobKind.BULK or job.state.is_terminal:
        return None
    problem = tx.parts.problem(job.id)
    if problem is None:
        of_manifest = tx.jobs.output_problem(job.id)
        return None if of_manifest is None else OutputProblem(of_manifest)
    if problem.next_attempt_at is not None and problem.next_attempt_at <= now:
        return OutputProblem(problem.problem)
    return problem


def _before_last_run(free: list[CutShard], parts: list[NewPart]) -> int:
    """The shard before those at a page's end that were not cut: on the next page they may be more."""
    cut_until = parts[-1].last_shard if parts else -1
    number = free[-1].shard_no if free else -1
    uncut = {shard.shard_no for shard in free if shard.shard_no > cut_until}
    while number in uncut:
        number -= 1
    return number
