"""Put a job's output together once none of its rows will run any more, and end the job.

The lines are counted against the input before the job ends: every row has exactly one. An attempt that dies
is repeated from the start or the last note, and writes the same bytes to the same places. One that finds the
job ended, or another scheduler leading, changes nothing.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nightshift.errors import InvalidRequest, NightshiftError, StorageError
from nightshift.jobs import Counts, Face, InputError, Job, JobState, Shard, ShardState, StopReason
from nightshift.jobs.limits import failed_rows_passed, why_stopped
from nightshift.lifecycle.transitions import counts_json, finish
from nightshift.objectstore import Locations, ObjectStore, ObjectUri, fenced
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import storage_verdict
from nightshift.processes import failpoints
from nightshift.rows.manifest import Part
from nightshift.rows.outputs import NotExecuted, RowResult
from nightshift.store import Store
from scheduler.input.plan import input_error
from scheduler.output.output_files import OutputFiles, write_files
from scheduler.output.part_files import Destination, OutputTrouble, PartWriter, forget_notes
from scheduler.output.results import InputTrouble, Mismatch, ResultLine, Results, Tally
from scheduler.runtime.duty import MayContinue, Result, check
from scheduler.runtime.thread_pools import POSTPONED, JobPool, JobPoolConfig

log = logging.getLogger(__name__)

LATE: Final = timedelta(days=1)  # after a job's deadline, for an output place that it named


@dataclass(frozen=True)
class AssemblyConfig:
    line_bytes_max: int  # one input row, read again where it was not run
    interval_s: float = 0.25  # between passes: what a small job waits for its output
    shards_per_step: int = 64  # between notes: what an interrupted attempt does again
    parts_at_once: int = 4  # of one job; most of the time, each waits for storage
    pool: JobPoolConfig = field(default_factory=JobPoolConfig)  # jobs assembled at once

    def __post_init__(self) -> None:
        if self.shards_per_step < 1 or self.parts_at_once < 1:
            raise ValueError("assembly needs at least one shard a step and one part at once")


@dataclass(frozen=True, kw_only=True)
class Assembled(Result):
    finalizing: int = 0  # jobs whose shards have all ended
    started: int = 0
    ended: int = 0
    postponed: int = 0  # storage was away
    too_late: int = 0  # jobs that had ended meanwhile


class AlreadyEnded(Exception):
    """The job has ended: another job's output may be in its place by now."""


class _Outcome(StrEnum):
    ENDED = "ended"
    TOO_LATE = "too_late"


@dataclass(frozen=True)
class _Output:
    counts: Counts
    state: JobState
    errors: tuple[InputError, ...] = ()
    files: OutputFiles = field(default_factory=OutputFiles)


class Assembly:
    name = "assembly"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        sources: Sources,
        locations: Locations,
        config: AssemblyConfig,
        may_continue: MayContinue = lambda: True,
    ) -> None:
        self._store = store
        self._objects = objects
        self._locations = locations
        self._config = config
        self._may_continue = may_continue
        self._results = Results(store, objects, sources, config.line_bytes_max)
        self._pool = JobPool(self.name, self._waiting, self._assemble, config.pool)
        self.interval_s = config.interval_s
        self.wait_until_idle = self._pool.wait_until_idle

    @property
    def blocked_s(self) -> float:
        return self._pool.blocked_s

    def run_once(self, now: datetime) -> Assembled:
        """Start work on jobs whose shards have all ended."""
        finalizing = self._mark_finalizing(now)
        pass_ = self._pool.run_once(now)
        return Assembled(
            finalizing=finalizing,
            started=len(pass_.started),
            ended=pass_.ended[_Outcome.ENDED],
            postponed=pass_.ended[POSTPONED],
            too_late=pass_.ended[_Outcome.TOO_LATE],
        )

    def _waiting(self, limit: int, after: Job | None) -> Sequence[Job]:
        with self._store.snapshot() as tx:
            return tx.jobs.to_assemble(limit, after)

    def _mark_finalizing(self, now: datetime) -> int:
        with self._store.snapshot() as tx:
            found = tx.jobs.to_finalize(self._config.pool.jobs_looked_at_max)
        if not found:
            return 0
        with self._store.transaction() as tx:
            marked = [job for job in found if tx.jobs.mark_finalizing(job.id, now)]
            for job in marked:
                said = {"status": JobState.FINALIZING, "counts": counts_json(job.counts)}
                tx.events.append(job.id, f"job.{JobState.FINALIZING}", said, now)
        return len(marked)

    def _assemble(self, job: Job) -> _Outcome:
        """Raises StorageError, DatabaseUnavailable, Interrupted: the job stays in `finalizing`."""
        failpoints.hit("scheduler.before_output")
        try:
            with fenced(lambda: self._check_may_write(job)):
                output = self._output(job)
            failpoints.hit("scheduler.output_written")
            outcome = self._end(job, output)
        except AlreadyEnded:
            outcome = _Outcome.TOO_LATE
        self._forget_notes(job)
        return outcome

    def _check_may_write(self, job: Job) -> None:
        """Asked before each change at the output's place. Raises AlreadyEnded, Interrupted,
        DatabaseUnavailable.
        """
        with self._store.snapshot() as tx:
            state = tx.jobs.fetch(job.id).state
        if state is not JobState.FINALIZING:
            raise AlreadyEnded
        check(self._may_continue)  # last: the query took a while

    def _output(self, job: Job) -> _Output:
        try:
            return self._files(job) if job.face is Face.OPENAI else self._parts(job)
        except Mismatch as mismatch:
            log.error("rows do not add up: %s", mismatch, extra={"action": "rows_mismatch", "job": job.id})
            message = f"The output does not add up: {mismatch}."
            return _failed_output(job, InputError("row_count_mismatch", message))
        except InputTrouble as trouble:
            is_ours = is_file_id(job.spec.input or "")
            return _output_failure(job, trouble.error, "input", self._store.now(), in_our_store=is_ours)
        except OutputTrouble as trouble:
            is_ours = job.spec.output is None
            return _output_failure(job, trouble.error, "output", self._store.now(), in_our_store=is_ours)
        except (InvalidRequest, StorageError) as error:
            return _output_failure(job, error, "output", self._store.now(), in_our_store=True)

    def _files(self, job: Job) -> _Output:
        """OpenAI: one output file, one error file."""
        tally = Tally()
        with self._store.snapshot() as tx:
            now = tx.now()
        files = write_files(job, tally.counted(self._lines(job)), self._objects, now)
        if job.counts.total not in (None, tally.rows):  # the number of rows that passed validation
            raise Mismatch(f"{tally.rows} lines for {job.counts.total} rows")
        state, errors = self._verdict(job, tally.counts)
        return _Output(tally.counts, state, errors, files)

    def _parts(self, job: Job) -> _Output:
        """Native: a part file per shard, a manifest, `_SUCCESS`."""
        if not job.has_shards:  # told to stop before its input was read: nothing is to be written
            return _Output(Counts(0, 0, 0), *self._verdict(job, Counts(0, 0, 0)))
        writer = self._part_writer(job)
        parts: list[Part] = []
        for shards in self._steps(job):
            parts += writer.write(shards)
        total, succeeded = sum(part.rows for part in parts), sum(part.succeeded for part in parts)
        counts = Counts(total, succeeded, total - succeeded)
        state, errors = self._verdict(job, counts)
        writer.finish(parts, counts, state)
        return _Output(counts, state, errors)

    def _part_writer(self, job: Job) -> PartWriter:
        return PartWriter(
            job,
            self._results,
            self._destination(job),
            self._objects,
            self._config.parts_at_once,
            self._may_continue,
        )

    def _lines(self, job: Job) -> Iterator[ResultLine]:
        for shards in self._steps(job):
            for shard in shards:
                check(self._may_continue)
                yield from self._results.lines(job, shard, _openai_line)

    def _steps(self, job: Job) -> Iterator[Sequence[Shard]]:
        """The job's shards in input order, a page at a time."""
        last_no = -1
        while True:
            check(self._may_continue)
            with self._store.snapshot() as tx:
                shards = tx.shards.of_job(job.id, after_no=last_no, limit=self._config.shards_per_step)
            if not shards:
                return
            yield shards
            last_no = shards[-1].shard_no

    def _destination(self, job: Job) -> Destination:
        if job.spec.output is None:
            return Destination(self._objects, f"results/{job.tenant_id}/{job.id}/")
        location = ObjectUri.parse(job.spec.output)
        prefix = location.key if location.is_prefix else f"{location.key}/"
        return Destination(self._locations.open(location, job.tenant_id), prefix)

    def _verdict(self, job: Job, counts: Counts) -> tuple[JobState, tuple[InputError, ...]]:
        with self._store.snapshot() as tx:
            shard_states = tx.shards.states(job.id)
        return verdict(job, counts, shard_states)

    def _end(self, job: Job, output: _Output) -> _Outcome:
        """In one transaction: record the files, end the job, owe its event and its webhook."""
        files = output.files
        with self._store.transaction() as tx:
            ended = finish(
                tx,
                job,
                output.state,
                tx.now(),
                counts=output.counts,
                errors=output.errors,
                output_file_id=files.output_id,
                error_file_id=files.error_id,
            )
            for file in files.written if ended else ():
                tx.files.insert(file)
        failpoints.hit("scheduler.job_ended")
        log.info(
            "job ended",
            extra={
                "action": "job_ended",
                "job": job.id,
                "state": output.state,
                "rows": output.counts.total,
                "failed": output.counts.failed,
            },
        )
        return _Outcome.ENDED if ended else _Outcome.TOO_LATE

    def _forget_notes(self, job: Job) -> None:
        try:
            forget_notes(job, self._objects)
        except StorageError as error:  # the job has ended all the same
            log.warning("notes left behind: %s", error, extra={"action": "notes_left", "job": job.id})


def verdict(
    job: Job, counts: Counts, shard_states: "Counter[ShardState]"
) -> tuple[JobState, tuple[InputError, ...]]:
    """The final state of a job whose output is complete, and why if it is not `succeeded`. Pure.

    Failed rows are results. The job fails when it has more of them than it allows, or when no shard ran to
    its end.
    """
    if job.stop_reason not in (None, StopReason.FAILED):
        return job.stop_reason.final_state, ()
    if job.stop_reason is StopReason.FAILED:
        return JobState.FAILED, job.errors or (why_stopped(job, counts),)
    if (passed := failed_rows_passed(job.spec, counts)) is not None:
        return JobState.FAILED, (passed,)
    if (
        shard_states.total()
        and shard_states[ShardState.FAILED] == shard_states.total()
        and not counts.succeeded
    ):
        message = "No worker could run any part of the input to its end."
        return JobState.FAILED, (InputError("interrupted", message),)
    return JobState.SUCCEEDED, ()


def _output_failure(
    job: Job, error: NightshiftError, param: str, now: datetime, *, in_our_store: bool
) -> _Output:
    """Fail a job whose output cannot be written. Raises the error again where waiting may help: always for
    our own store, and until the job is `LATE` for a place it named.
    """
    is_late = not in_our_store and now >= job.deadline_at + LATE
    if storage_verdict(error, in_our_store=in_our_store) != "fail" and not is_late:
        raise error
    log.error("no output: %s", error, extra={"action": "output_impossible", "job": job.id})
    return _failed_output(job, input_error(error, param))


def _failed_output(job: Job, error: InputError) -> _Output:
    """A failed job without output; its results stay in its segments."""
    finished = job.counts.succeeded + job.counts.failed
    total = finished if job.counts.total is None else job.counts.total
    return _Output(
        Counts(total, job.counts.succeeded, total - job.counts.succeeded), JobState.FAILED, (error,)
    )


def _openai_line(result: RowResult | NotExecuted) -> dict[str, object]:
    return result.openai_line()
