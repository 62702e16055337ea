"""Jobs that end before their work is done: in every state, for every reason, whatever kind they are.

What they have is kept, every row has one line, the place they took is free, and their webhook is told once.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import Column, update

from nightshift.jobs import Face, JobKind, JobState
from nightshift.jobs.ids import batch_id
from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import BulkJob, Job, OnlineJob, Row, submit_bulk, submit_online
from tests.faults.kit.service import Service
from tests.helpers.waiting import wait_for

KEPT = 3  # rows of a job that are over at once
LEFT = 3  # rows that would run for half an hour
BULK_JOBS, ONLINE_JOBS = 7, 3  # at most in a test: the worker has places for as many online, and more in bulk


@pytest.fixture(scope="module")
def service(module_service_of) -> Service:
    """One worker with few places more than a test's jobs take and just enough room for their long rows: the
    next job waits for what one that has ended does not give back.
    """
    return module_service_of(
        ONLINE_SLOTS=str(ONLINE_JOBS),
        ENGINE_MAX_NUM_SEQS=str(BULK_JOBS * LEFT + ONLINE_JOBS),
        SHARD_BYTES="1000000",
        STOP_GRACE_S="1",
    )


# -- the jobs, and what happens to them ----------------------------------------------------------------


def short(number: int = 0) -> Row:
    return Row(f"short-{number}", f"short {number}", max_tokens=4)


def long(number: int = 0) -> Row:
    return Row(f"long-{number}", f"long {number} ms=20", max_tokens=90_000)


def one_of_each_kind(service: Service, rows: Sequence[Row], **options: Any) -> list[Job]:
    """A native bulk job, an OpenAI batch, and the last row as an online request."""
    return [
        submit_bulk(service, rows, **options),
        submit_bulk(service, rows, face=Face.OPENAI, **options),
        submit_online(service, rows[-1], **options),
    ]


@dataclass(frozen=True)
class Stop:
    """A reason to end a job, and what its rows that were not run say."""

    state: JobState
    act: Callable[[Service, Job], None]

    @property
    def code(self) -> str:
        return f"batch_{self.state}"


def cancel(service: Service, job: Job) -> httpx.Response:
    with service.http() as http:
        is_batch = isinstance(job, BulkJob) and job.face is Face.OPENAI
        return http.post(
            f"/v1/batches/{batch_id(job.id)}/cancel" if is_batch else f"/v1/jobs/{job.id}/cancel"
        )


def let_pass(column: Column[Any]) -> Callable[[Service, Job], None]:
    """A job's deadline is now. It must have one: the shortest, a minute, is too long to wait."""

    def act(service: Service, job: Job) -> None:
        with service.store.snapshot() as tx:
            now = tx.now()
        with service.database.write() as connection:
            is_set = (tables.job.c.id == job.id, column.is_not(None))
            changed = connection.execute(update(tables.job).where(*is_set).values({column: now}))
            assert changed.rowcount == 1, f"{job.id} has no {column.name}"

    return act


CANCEL = Stop(JobState.CANCELLED, lambda service, job: cancel(service, job).raise_for_status() and None)
EXPIRY = Stop(JobState.EXPIRED, let_pass(tables.job.c.deadline_at))
MAX_RUNTIME = Stop(JobState.EXPIRED, let_pass(tables.job.c.runtime_deadline_at))
STOPS = (CANCEL, EXPIRY, MAX_RUNTIME)


def is_running(service: Service, job: Job, succeeded: int = 0) -> bool:
    """Whether a worker is at it, and so many of its rows are over."""
    ended = service.job(job.id)
    return ended.state is JobState.RUNNING and ended.counts.succeeded == succeeded


# -- how they end --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """The outside of a job that has ended. Lines are (custom id, status or error code)."""

    state: str
    counts: tuple[int, int, int]  # rows in all, succeeded, failed
    lines: tuple[tuple[str | None, Any], ...]
    webhooks: frozenset[tuple[str, str]]  # (id, type)


def ending_of(service: Service, job: Job) -> Ending:
    with service.client() as client:
        shown = client.get_job(job.id)
    counts = shown.counts
    return Ending(
        shown.state,
        (counts.total or 0, counts.succeeded, counts.failed),
        tuple(sorted(map(_told, _lines(service, job)), key=str)),
        frozenset(_webhooks(service, job)),
    )


def _lines(service: Service, job: Job) -> list[dict[str, Any]]:
    if isinstance(job, OnlineJob):
        with service.client() as client:
            return list(client.results(job.id))
    stored = service.job(job.id)
    if stored.planned_at is None:  # its input was not read: nothing was written
        return []
    return [json.loads(line) for line in oracle.output_lines(service, job, stored)]


def _told(line: dict[str, Any]) -> tuple[str | None, Any]:
    response = line["response"]
    return line["custom_id"], line["error"]["code"] if response is None else response["status_code"]


def _webhooks(service: Service, job: Job) -> Iterator[tuple[str, str]]:
    for request in service.receiver.requests:
        event = json.loads(request.body)
        if event["data"]["id"] in (job.id, batch_id(job.id)):
            yield request.headers["webhook-id"], event["type"]


def assert_ended(service: Service, job: Job, state: JobState, told: dict[str | None, Any]) -> None:
    """A job has ended like this, with exactly these lines, nothing of it is leased, and its one webhook
    says so.
    """
    ending = ending_of(service, job)
    succeeded = sum(code == httpx.codes.OK for code in told.values())
    assert ending.state == state
    assert ending.lines == tuple(sorted(told.items(), key=str))
    assert ending.counts == (len(told), succeeded, len(told) - succeeded)
    [(_, event_type)] = ending.webhooks
    is_batch = isinstance(job, BulkJob) and job.face is Face.OPENAI
    ended_as = "completed" if is_batch and state is JobState.SUCCEEDED else state
    assert event_type == f"{'batch' if is_batch else 'job'}.{ended_as}"
    with service.store.snapshot() as tx:
        assert not tx.shards.has_open(job.id)


def told_of(job: Job, *, kept: int, left: int, code: str) -> dict[str | None, Any]:
    """Lines of a job that was stopped: of its short rows, of its long ones."""
    if isinstance(job, OnlineJob):
        return {None: code}
    return {f"short-{number}": httpx.codes.OK for number in range(kept)} | {
        f"long-{number}": code for number in range(left)
    }


def assert_places_are_free(service: Service) -> None:
    """As many jobs as there are places run to their end."""
    jobs: list[Job] = [submit_bulk(service, [short(number)]) for number in range(BULK_JOBS)]
    jobs += [submit_online(service, short(number)) for number in range(ONLINE_JOBS)]
    oracle.judge(service, jobs)


# -- state by state ------------------------------------------------------------------------------------


def test_a_job_not_begun_ends_with_a_line_for_every_row(service: Service) -> None:
    rows = [long(number) for number in range(LEFT)]
    service.pause("worker-1")
    stopped = {stop: one_of_each_kind(service, rows) for stop in (CANCEL, EXPIRY)}
    waiting = one_of_each_kind(service, [short()], max_runtime="1m")
    all_jobs = [job for jobs in (*stopped.values(), waiting) for job in jobs]
    wait_for("all inputs are read", lambda: all(_is_planned(service, job) for job in all_jobs))

    for stop, jobs in stopped.items():
        for job in jobs:
            stop.act(service, job)

    oracle.quiesce(service, [job for jobs in stopped.values() for job in jobs])
    for stop, jobs in stopped.items():
        for job in jobs:
            assert_ended(service, job, stop.state, told_of(job, kept=0, left=LEFT, code=stop.code))
    assert not any(service.job(job.id).state.is_terminal for job in waiting), (
        "run time begins with the first claim"
    )
    service.resume("worker-1")
    oracle.judge(service, waiting)


def test_an_input_not_read_yet_is_not_needed_to_end_a_job(service: Service) -> None:
    service.pause("scheduler-1")
    jobs = [submit_bulk(service, [short()]), submit_bulk(service, [short()], face=Face.OPENAI)]
    for job in jobs:
        CANCEL.act(service, job)
    service.resume("scheduler-1")

    oracle.quiesce(service, jobs)
    for job in jobs:
        assert_ended(service, job, JobState.CANCELLED, {})


def test_what_is_under_way_keeps_the_rows_it_has_and_frees_its_place(service: Service) -> None:
    rows = [short(number) for number in range(KEPT)] + [long(number) for number in range(LEFT)]
    stopped = {stop: one_of_each_kind(service, rows, max_runtime="1h") for stop in STOPS}
    failing = submit_bulk(
        service, [*rows, Row("bad", "x" * 100_001, ends_as="errored")], face=Face.OPENAI, max_error_rate=0.1
    )
    for jobs in stopped.values():
        for job in jobs:
            kept = KEPT if isinstance(job, BulkJob) else 0
            wait_for(f"{job.id} is under way", lambda job=job, kept=kept: is_running(service, job, kept))

    for stop, jobs in stopped.items():
        for job in jobs:
            stop.act(service, job)

    oracle.quiesce(service, [failing, *(job for jobs in stopped.values() for job in jobs)])
    for stop, jobs in stopped.items():
        for job in jobs:
            assert_ended(service, job, stop.state, told_of(job, kept=KEPT, left=LEFT, code=stop.code))
    told = told_of(failing, kept=KEPT, left=LEFT, code="batch_failed")
    assert_ended(service, failing, JobState.FAILED, told | {"bad": httpx.codes.BAD_REQUEST})
    assert_places_are_free(service)


def test_a_worker_that_says_nothing_does_not_keep_a_job_from_ending(service: Service) -> None:
    """It is frozen over rows it has begun, and wakes when they are over without it."""
    rows = [long(number) for number in range(LEFT)]
    stopped = {stop: one_of_each_kind(service, rows, max_runtime="1h") for stop in STOPS}
    all_jobs = [job for jobs in stopped.values() for job in jobs]
    wait_for("all are under way", lambda: all(is_running(service, job) for job in all_jobs))
    service.pause("worker-1")

    for stop, jobs in stopped.items():
        for job in jobs:
            stop.act(service, job)

    oracle.quiesce(service, all_jobs)
    endings = {job.id: ending_of(service, job) for job in all_jobs}
    for stop, jobs in stopped.items():
        for job in jobs:
            assert_ended(service, job, stop.state, told_of(job, kept=0, left=LEFT, code=stop.code))
    service.resume("worker-1")
    assert_places_are_free(service)
    assert {job.id: ending_of(service, job) for job in all_jobs} == endings


def test_too_many_failed_rows_are_noticed_at_the_end_at_the_latest(service: Service) -> None:
    """How many rows a native job has is not known before they have been read."""
    rows = [short(), Row("bad", "x" * 100_001, ends_as="errored")]
    job = submit_bulk(service, rows, max_error_rate=0.4)

    oracle.quiesce(service, [job])

    told = {"short-0": httpx.codes.OK, "bad": httpx.codes.BAD_REQUEST}
    assert_ended(service, job, JobState.FAILED, told)


def test_what_is_being_put_together_or_over_is_not_stopped_any_more(service: Service) -> None:
    over = submit_online(service, short())
    oracle.quiesce(service, [over])
    service.arm("scheduler.before_output")
    finalizing = [
        submit_bulk(service, [short()], max_runtime="1h"),
        submit_bulk(service, [short()], face=Face.OPENAI, max_runtime="1h"),
    ]
    service.wait_for_death("scheduler.before_output")
    service.stop("scheduler-1")
    ending = [job for job in (over, *finalizing) if _is_being_put_together_or_over(service, job)]

    for job in ending:
        answer = cancel(service, job)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (httpx.codes.CONFLICT, "false")
        let_pass(tables.job.c.deadline_at)(service, job)
        if job is not over:
            let_pass(tables.job.c.runtime_deadline_at)(service, job)
    service.let_another_lead()
    service.start("scheduler-1")

    assert len(ending) >= 2
    oracle.judge(service, [over, *finalizing])
    later = submit_online(service, long())
    EXPIRY.act(service, later)
    oracle.quiesce(service, [later])  # so the deadlines of the others have been looked at once more
    oracle.check(service, [over, *finalizing])


def _is_being_put_together_or_over(service: Service, job: Job) -> bool:
    state = service.job(job.id).state
    return state is JobState.FINALIZING or state.is_terminal


def _is_planned(service: Service, job: Job) -> bool:
    current = service.job(job.id)
    return current.kind is JobKind.ONLINE or current.planned_at is not None
