"""Puts a job's output together once none of its rows will run any more, and ends the job.

The parts of a native job are written by then, or soon will be (`running_output.py`). Every row has exactly
one line. An attempt that dies is repeated, and writes the same bytes to the same places. One that finds the
job ended, or another scheduler leading, changes nothing.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from opentelemetry.trace import Span

from nightshift.bulk.results.destinations import OutputTrouble, destination_of
from nightshift.bulk.results.output_rows import Chunk, InputTrouble, Listing, Mismatch, shards_of_job
from nightshift.bulk.results.part_encoding import Tally
from nightshift.bulk.results.part_writer import TROUBLES, PartDependencies, ResultsTrouble, problem_of
from nightshift.errors import InvalidRequest, NightshiftError
from nightshift.jobs import Counts, Face, InputError, Job, JobState, ShardState, StopReason
from nightshift.jobs.leases import Lead
from nightshift.jobs.limits import failed_rows_passed, why_stopped
from nightshift.jobs.part import OutputPart, PartProblem
from nightshift.lifecycle import cutting
from nightshift.lifecycle.transitions import counts_json, finish
from nightshift.objectstore import fenced
from nightshift.process import failpoints
from nightshift.process.tracing.attributes import JOB, JOB_STATE, ROWS, ROWS_FAILED, TENANT
from nightshift.process.tracing.spans import Value, end, follow
from nightshift.store import PendingWork
from scheduler.duties.running_output import cut_job
from scheduler.output.manifests import Manifests, discard_staged
from scheduler.output.output_files import OutputFiles, write_files
from scheduler.runtime.duty import Interrupted, MayContinue, PassResult, check, interruptible, working_under
from scheduler.runtime.thread_pools import POSTPONED, JobPool, JobPoolConfig, leaves_a_thread

log = logging.getLogger(__name__)

BROKEN: Final = PartProblem(
    error=InputError("internal_error", "an unforeseen error of the service", param="output"),
    is_permanent=False,
)
PARTS_PAGE: Final = 64
INPUT_ERRORS_MAX: Final = 10  # told of a job: many objects may have been cut in the same way
LATE: Final = timedelta(days=1)  # after a job's deadline, for an output place that it named


@dataclass(frozen=True)
class AssemblyConfig:
    interval_s: float = 0.25  # between passes: what a small job waits for its output
    pool: JobPoolConfig = field(default_factory=JobPoolConfig)  # jobs assembled at once


@dataclass(frozen=True, kw_only=True)
class Assembled(PassResult):
    states = frozenset({"started", "postponed", "waiting"})

    finalizing: int = 0  # jobs whose shards have all ended
    started: int = 0
    ended: int = 0
    postponed: int = 0  # storage was away
    too_late: int = 0  # jobs that had ended meanwhile
    waiting: int = 0  # jobs whose last parts are to be written


class AlreadyEnded(Exception):
    """The job has ended: another job's output may be in its place by now."""


class _Outcome(StrEnum):
    ENDED = "ended"
    TOO_LATE = "too_late"
    WAITING = "waiting"


@dataclass(frozen=True)
class _Output:
    counts: Counts
    state: JobState
    errors: tuple[InputError, ...] = ()
    rows_unlisted: int = 0
    files: OutputFiles = field(default_factory=OutputFiles)


class Assembly:
    name = "assembly"

    def __init__(
        self,
        dependencies: PartDependencies,
        lead: Callable[[], Lead | None],
        config: AssemblyConfig = AssemblyConfig(),
        may_continue: MayContinue = lambda: True,
    ) -> None:
        self._store = store = dependencies.store
        self._objects = dependencies.objects
        self._locations = dependencies.locations
        self._manifests = Manifests(store, lead)
        self._config = config
        self._may_continue = may_continue
        self._rows = dependencies.rows
        self._pool = JobPool(
            self.name, self._waiting, self._assemble, config.pool, leaves_a_thread(config.pool.threads_max)
        )
        self.interval_s = config.interval_s
        self.wait_until_idle = self._pool.wait_until_idle

    @property
    def blocked_s(self) -> float:
        return self._pool.blocked_s

    def due_at(self, work: PendingWork) -> datetime | None:
        is_due = work.is_to_finalize or work.is_finalizing or self._pool.is_busy
        return work.at if is_due else None

    def run_once(self, now: datetime) -> Assembled:
        """Starts work on jobs whose shards have all ended."""
        finalizing = self._mark_finalizing(now)
        pass_ = self._pool.run_once(now)
        return Assembled(
            finalizing=finalizing,
            started=len(pass_.started),
            ended=pass_.ended[_Outcome.ENDED],
            postponed=pass_.ended[POSTPONED],
            too_late=pass_.ended[_Outcome.TOO_LATE],
            waiting=pass_.ended[_Outcome.WAITING],
        )

    def _waiting(self, limit: int, after: Job | None) -> Sequence[Job]:
        with self._store.snapshot() as tx:
            return tx.jobs.to_assemble(limit, after)

    def _mark_finalizing(self, now: datetime) -> int:
        with self._store.snapshot() as tx:
            ready = tx.jobs.to_finalize(self._config.pool.jobs_looked_at_max)
        if not ready:
            return 0
        with self._store.transaction() as tx:
            marked = [job for job in ready if tx.jobs.mark_finalizing(job.id, now)]
            for job in marked:
                said = {"status": JobState.FINALIZING, "counts": counts_json(job.counts)}
                tx.events.append(job.id, f"job.{JobState.FINALIZING}", said, now)
        return len(marked)

    def _assemble(self, job: Job) -> _Outcome:
        """Raises StorageError, DatabaseUnavailable, Interrupted: the job stays in `finalizing`."""
        span = follow(job.traceparent, "assemble")
        with working_under(span):
            try:
                return self._assembled(job, span)
            except (NightshiftError, Interrupted):
                raise
            except Exception:  # it is tried again
                cutting.record_problem(self._store, job.id, BROKEN)
                raise

    def _assembled(self, job: Job, span: Span) -> _Outcome:
        failpoints.hit("scheduler.before_output")
        try:
            with fenced(lambda: self._check_may_write(job)):
                output = self._output(job)
            if output is None:
                return _Outcome.WAITING
            failpoints.hit("scheduler.output_written")
            outcome = self._end(job, output)
            _end_span(span, job, output)
            return outcome
        except AlreadyEnded:
            return _Outcome.TOO_LATE

    def _check_may_write(self, job: Job) -> None:
        """Asked before each change at the output's place. Raises AlreadyEnded, Interrupted,
        DatabaseUnavailable.
        """
        with self._store.snapshot() as tx:
            state = tx.jobs.fetch(job.id).state
        if state is not JobState.FINALIZING:
            raise AlreadyEnded
        check(self._may_continue)  # last: the query took a while

    def _output(self, job: Job) -> _Output | None:
        """The output. None: some of it is still to be written."""
        try:
            output = self._files(job) if job.face is Face.OPENAI else self._parts(job)
        except TROUBLES as error:
            problem = problem_of(job, error)
            if not self._is_over(job, problem):
                cutting.record_problem(self._store, job.id, problem)
                raise _postponed(error) from error
            return self._without_output(job, problem)
        if output is None:
            cutting.record_problem(self._store, job.id, None)  # what is left is a problem of its parts
        return output

    def _reopened(self, job: Job, parts: Sequence[OutputPart]) -> int:
        """Parts whose files are gone are written again: their results are still there."""
        if not any(part.files for part in parts):
            return 0
        lost = self._manifests.lost(destination_of(job, self._objects, self._locations), parts)
        if not lost:
            return 0
        log.warning("parts are gone", extra={"action": "parts_gone", "job": job.id, "parts": len(lost)})
        with self._store.transaction() as tx:
            return sum(
                tx.parts.reopen(job.id, [part.first_shard for part in lost[first : first + PARTS_PAGE]])
                for first in range(0, len(lost), PARTS_PAGE)
            )

    def _without_output(self, job: Job, problem: PartProblem) -> _Output:
        """Discards what was begun at the output's place, if that place lets us. Results are kept."""
        if job.face is Face.NATIVE:
            with suppress(OutputTrouble, InvalidRequest):
                discard_staged(job, destination_of(job, self._objects, self._locations))
            return _failed_output(job, problem.error, _incomplete(job))
        return _failed_output(job, problem.error)

    def _is_over(self, job: Job, problem: PartProblem) -> bool:
        """Whether a job fails whose output cannot be written. Waiting may help: always for our own store,
        and until the job is `LATE` for a place it named.
        """
        is_late = job.spec.output is not None and self._store.now() >= job.deadline_at + LATE
        if not problem.is_permanent and not is_late:
            return False
        message = problem.error.message
        log.error("no output: %s", message, extra={"action": "output_impossible", "job": job.id})
        return True

    def _files(self, job: Job) -> _Output:
        """OpenAI: one output file, one error file."""
        tally = Tally()
        with self._store.snapshot() as tx:
            now = tx.now()
        files = write_files(job, self._chunks(job, tally), self._objects, now)
        if job.counts.total not in (None, tally.rows):  # the number of rows that passed validation
            raise Mismatch(f"{tally.rows} lines for {job.counts.total} rows")
        counts = Counts(tally.rows, tally.succeeded, tally.failed)
        state, errors = self._verdict(job, counts)
        return _Output(counts, state, errors, tally.unlisted, files)

    def _parts(self, job: Job) -> _Output | None:
        """Native: parts, a manifest, `_SUCCESS`."""
        cut_job(self._store, job)
        with self._store.snapshot() as tx:
            is_written, trouble = cutting.is_written(tx, job), tx.parts.problem(job.id)
            has_parts = bool(tx.parts.states(job.id))
        if not is_written:
            is_over = trouble is not None and self._is_over(job, trouble.problem)
            return self._without_output(job, trouble.problem) if trouble is not None and is_over else None
        parts = self._manifests.parts(job)
        if self._reopened(job, parts):
            return None
        total, succeeded = sum(part.rows for part in parts), sum(part.succeeded for part in parts)
        counts = Counts(total, succeeded, total - succeeded)
        state, errors = self._verdict(job, counts)
        if has_parts or job.has_shards:  # else it was told to stop before its input was read
            destination = destination_of(job, self._objects, self._locations)
            self._manifests.finish(job, destination, state, counts, parts)
        unlisted = sum(file.unlisted for part in parts for file in part.files)
        return _Output(counts, state, errors, unlisted)

    def _chunks(self, job: Job, tally: Tally) -> Iterator[Chunk]:
        """The chunks, each counted as it is taken."""
        listing = Listing()
        for shard in interruptible(shards_of_job(self._store, job.id), self._may_continue):
            for chunk in self._rows.chunks(job, shard, listing):
                tally.count(chunk)
                yield chunk

    def _verdict(self, job: Job, counts: Counts) -> tuple[JobState, tuple[InputError, ...]]:
        with self._store.snapshot() as tx:
            shard_states = tx.shards.states(job.id)
            input_errors = tx.shards.input_errors(job.id, INPUT_ERRORS_MAX)
        return verdict(job, counts, shard_states, input_errors)

    def _end(self, job: Job, output: _Output) -> _Outcome:
        """Records the files, ends the job and owes its event and webhook, in one transaction."""
        files = output.files
        with self._store.transaction() as tx:
            ended = finish(
                tx,
                job,
                output.state,
                tx.now(),
                counts=output.counts,
                errors=output.errors,
                rows_unlisted=output.rows_unlisted,
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


def _end_span(span: Span, job: Job, output: _Output) -> None:
    counts = output.counts
    about: dict[str, Value] = {
        JOB: job.id,
        TENANT: job.tenant_id,
        JOB_STATE: output.state.value,
        ROWS: counts.total or 0,
        ROWS_FAILED: counts.failed,
    }
    error = output.errors[0].code if output.state is JobState.FAILED and output.errors else None
    end(span, about, error=error)


def verdict(
    job: Job,
    counts: Counts,
    shard_states: "Counter[ShardState]",
    input_errors: Sequence[InputError] = (),
) -> tuple[JobState, tuple[InputError, ...]]:
    """The final state of a job whose output is complete, and why if it is not `succeeded`. Pure.

    Failed rows are results. The job fails when it has more of them than it allows, when an object of its
    input could not be read to its end, or when no shard ran to its end.
    """
    if job.stop_reason not in (None, StopReason.FAILED):
        return job.stop_reason.final_state, ()
    if job.stop_reason is StopReason.FAILED:
        return JobState.FAILED, job.errors or (why_stopped(job, counts),)
    if input_errors:
        return JobState.FAILED, tuple(input_errors)
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


def _postponed(error: Exception) -> Exception:
    """Returns the error that the pool of jobs takes for a reason to try later."""
    return error.error if isinstance(error, InputTrouble | OutputTrouble | ResultsTrouble) else error


def _incomplete(job: Job) -> InputError:
    rows = job.counts.succeeded + job.counts.failed
    message = (
        f"The output is not complete, and has no manifest. The results of the {rows} rows that finished are "
        f"at /v1/jobs/{job.id}/results: `nightshift jobs results {job.id}` shows them."
    )
    return InputError("output_incomplete", message, param="output")


def _failed_output(job: Job, *errors: InputError) -> _Output:
    """A failed job without output; its results stay in its segments."""
    finished = job.counts.succeeded + job.counts.failed
    total = finished if job.counts.total is None else job.counts.total
    return _Output(Counts(total, job.counts.succeeded, total - job.counts.succeeded), JobState.FAILED, errors)
