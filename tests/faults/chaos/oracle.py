"""Says whether anything was lost, doubled or changed, from the outside and from behind the scenes.

Every answer is known (`answers.py`), so the output of a job that was disturbed is compared byte for byte with
what an undisturbed run would have written, without running one.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import select

from nightshift import endpoints
from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.endpoints.results import Identity, Origin, Result
from nightshift.endpoints.texts.chat import ChatRequest
from nightshift.errors import DatabaseUnavailable, NightshiftError
from nightshift.jobs import Counts, Face, JobState, Shard, ShardState
from nightshift.jobs import Job as StoredJob
from nightshift.jobs.dead_letters import UNEXPLAINED_CRASHES_MAX
from nightshift.jobs.ids import batch_id
from nightshift.store import tables
from tests.faults.chaos.answers import Asked, answers_of
from tests.faults.chaos.workload import BulkJob, Job, OnlineJob, Row
from tests.faults.kit.service import Service
from tests.helpers.waiting import WAIT_MAX_S, wait_for

FAR_AHEAD: Final = timedelta(days=1000)
SHARDS_PAGE: Final = 1000


class OracleFailure(AssertionError):
    """Something was lost, doubled, changed or left behind."""


@dataclass(frozen=True)
class Limits:
    """Limits of what a run may have cost."""

    attempts_max: int = 20  # leases of one shard
    outcomes_checked: Collection[str] = ("succeeded",)  # rows to end otherwise have only that checked
    kills_are_many: bool = False  # a row that ran alone each time may be taken for what killed its workers


@dataclass(frozen=True)
class Verdict:
    """Figures of a run that passed."""

    jobs: int
    rows: int
    shards: int
    attempts_most: int  # of any shard
    repeated_webhooks: int
    dead_lettered: int = 0  # rows that many kills made dead letters


def quiesce(service: Service, jobs: Sequence[Job], timeout_s: float = WAIT_MAX_S) -> None:
    """Waits until nothing is to be done any more: every job has ended, nothing is leased or owed."""
    _wait_for_nothing(lambda: _unfinished(service, jobs), timeout_s)


def wait_for_ends(service: Service, jobs: Sequence[Job], timeout_s: float = WAIT_MAX_S) -> None:
    """Waits until every job has ended; rings and webhooks may still be owed."""
    _wait_for_nothing(lambda: _if_known(lambda: _open_jobs(service, jobs)), timeout_s)


def judge(service: Service, jobs: Sequence[Job], limits: Limits = Limits()) -> Verdict:
    """Waits until nothing is to be done any more, and checks."""
    quiesce(service, jobs)
    return check(service, jobs, limits)


def check(service: Service, jobs: Sequence[Job], limits: Limits = Limits()) -> Verdict:
    """Raises OracleFailure naming the job, the row and what is wrong. After `quiesce`."""
    if unfinished := _unfinished(service, jobs):
        raise OracleFailure(f"not over: {', '.join(unfinished)}")
    check_counters(service)
    most = shards_seen = rows = dead_lettered = 0
    for accepted in jobs:
        stored, shards = _stored(service, accepted)
        job, dead = (
            _without_dead_letters(service, accepted, shards) if limits.kills_are_many else (accepted, 0)
        )
        dead_lettered += dead
        most = max([most, *(shard.attempts for shard in shards)])
        shards_seen += len(shards)
        rows += len(job.rows) if isinstance(job, BulkJob) else 1
        for shard in shards:
            if shard.attempts > limits.attempts_max:
                raise OracleFailure(f"{job.id} shard {shard.shard_no}: {shard.attempts} attempts")
        if isinstance(job, BulkJob):
            _check_bulk(service, job, stored, shards)
        else:
            _check_online(service, job, stored)
    return Verdict(len(jobs), rows, shards_seen, most, _check_webhooks(service, jobs), dead_lettered)


def check_counters(service: Service) -> None:
    """Checks that counters of what tenants hold equal a recount, and were never corrected."""
    with service.store.snapshot() as tx:
        differences = tx.holdings.differences()
    if differences:
        raise OracleFailure(f"the counters of tenants lack {dict(differences)}")
    for role in service.kept:
        if "counters corrected" in service.log(role):
            raise OracleFailure(f"{role} has corrected the counters of tenants")


def expected_lines(
    service: Service, job: BulkJob, stored: StoredJob, shards: Sequence[Shard]
) -> Iterator[RowResult]:
    """Results that every row that succeeds is to give, in order."""
    heads = [ShardHead.of_shard(stored, shard.shard_no) for shard in shards]
    numbered = [
        (head, index)
        for head, shard in zip(heads, shards, strict=True)
        for index in range(shard.rows_total or 0)
    ]
    identities = [head.identity(index) for head, index in numbered]
    results = expected_results(service, stored, job.rows, identities)
    for row, (head, index), result in zip(job.rows, numbered, results, strict=True):
        yield RowResult.from_result(head, index, row.custom_id, result)


def expected_results(
    service: Service, stored: StoredJob, rows: Sequence[Row], identities: Sequence[Identity]
) -> list[Result]:
    """The request of each row with its identity, in order."""
    requests: list[Asked] = []
    for row, identity in zip(rows, identities, strict=True):
        request = endpoints.get(stored.spec.endpoint).parse(row.body(service.model))
        assert isinstance(request, ChatRequest)
        requests.append((request, identity, stored.priority))
    urls = [upstream.url for upstream in service.upstreams.values()]
    return answers_of(service.parts.engine, *urls).results(requests)


def _wait_for_nothing(unfinished: Callable[[], list[str]], timeout_s: float) -> None:
    """Raises OracleFailure naming what is left when the time is over."""
    left: list[str] = []

    def is_rest() -> bool:
        left[:] = unfinished()
        return not left

    try:
        wait_for("rest", is_rest, timeout_s)
    except TimeoutError as error:
        raise OracleFailure(f"{error}: {', '.join(left[:10])} ({len(left)} in all)") from error


# -- what is left to do --------------------------------------------------------------------------------


def _unfinished(service: Service, jobs: Sequence[Job]) -> list[str]:
    return _if_known(lambda: [*_open_jobs(service, jobs), *_owed(service)])


def _if_known(ask: Callable[[], list[str]]) -> list[str]:
    try:
        return ask()
    except DatabaseUnavailable as error:
        return [str(error)]


def _open_jobs(service: Service, jobs: Sequence[Job]) -> list[str]:
    """One statement for all of them: this is asked again and again."""
    job = tables.job
    with service.database.read() as connection:
        wanted = select(job.c.id, job.c.state).where(job.c.id.in_([accepted.id for accepted in jobs]))
        states = {row.id: JobState(row.state) for row in connection.execute(wanted)}
    lost = [f"{job.id} was accepted and is not there" for job in jobs if job.id not in states]
    return lost + [f"{id} is {state}" for id, state in states.items() if not state.is_terminal]


def _owed(service: Service) -> Iterator[str]:
    with service.store.snapshot() as tx:
        if tx.leases.expired(tx.now() + FAR_AHEAD, limit=1):
            yield "a shard is leased"
        if rings := tx.outbox.length():
            yield f"{rings} rings are owed"
        if pending := tx.deliveries.owed().pending:
            yield f"{pending} webhooks are owed"


def _stored(service: Service, job: Job) -> tuple[StoredJob, list[Shard]]:
    with service.store.snapshot() as tx:
        stored = tx.jobs.fetch(job.id)
        shards: list[Shard] = []
        while page := tx.shards.of_job(job.id, after_no=len(shards) - 1, limit=SHARDS_PAGE):
            shards += page
    return stored, shards


def _without_dead_letters(service: Service, job: Job, shards: Sequence[Shard]) -> tuple[Job, int]:
    """The job with its dead-lettered rows expected to be errors, and how many they are: only rows that lost
    as many workers as `nightshift/jobs/dead_letters.py` demands of losses without a known cause.
    """
    dead = tables.dead_row
    wanted = select(dead.c.shard_id, dead.c.row).where(
        dead.c.job_id == job.id, dead.c.crashes >= UNEXPLAINED_CRASHES_MAX
    )
    with service.database.read() as connection:
        dead_lettered = {(row.shard_id, row.row) for row in connection.execute(wanted)}
    if not dead_lettered:
        return job, 0
    if isinstance(job, OnlineJob):
        return replace(job, row=replace(job.row, ends_as="errored")), 1
    places = [(shard.id, index) for shard in shards for index in range(shard.rows_total or 0)]
    rows = [
        replace(row, ends_as="errored") if place in dead_lettered else row
        for row, place in zip(job.rows, places, strict=True)
    ]
    return replace(job, rows=rows), len(dead_lettered)


# -- a job's rows --------------------------------------------------------------------------------------


def _check_bulk(service: Service, job: BulkJob, stored: StoredJob, shards: Sequence[Shard]) -> None:
    if stored.state is not JobState.SUCCEEDED:
        raise OracleFailure(f"{job.id} has ended as {stored.state}: {stored.errors}")
    if left := [shard.shard_no for shard in shards if shard.state is not ShardState.DONE]:
        raise OracleFailure(f"{job.id}: shards {left} are not done")
    rows_of_shards = sum(shard.rows_total or 0 for shard in shards)
    if rows_of_shards != len(job.rows):
        raise OracleFailure(f"{job.id}: {rows_of_shards} rows in its shards, {len(job.rows)} in its input")
    lines = output_lines(service, job, stored)
    _check_rows(service, job, stored, shards, lines)
    failed = sum(row.ends_as != "succeeded" for row in job.rows)
    counts = Counts(len(job.rows), len(job.rows) - failed, failed)
    if stored.counts != counts:
        raise OracleFailure(f"{job.id}: the database counts {stored.counts}, it is {counts}")
    with service.client() as client:
        if (told := client.get_job(job.id).counts) != counts:
            raise OracleFailure(f"{job.id}: the API counts {told}, it is {counts}")


def _check_rows(
    service: Service, job: BulkJob, stored: StoredJob, shards: Sequence[Shard], lines: Sequence[bytes]
) -> None:
    """Every row exactly one line, in order, with exactly the bytes that were to be expected."""
    custom_ids = [json.loads(line)["custom_id"] for line in lines]
    expected = list(expected_lines(service, job, stored, shards))
    order = _output_order(job)
    wanted = [job.rows[index].custom_id for index in order]
    if custom_ids != wanted:
        missing, surplus = sorted(set(wanted) - set(custom_ids)), sorted(set(custom_ids) - set(wanted))
        doubled = sorted({custom_id for custom_id in custom_ids if custom_ids.count(custom_id) > 1})
        raise OracleFailure(
            f"{job.id}: missing {missing}, doubled {doubled}, strange {surplus}, or in disorder"
        )
    for index, line in zip(order, lines, strict=True):
        row, result = job.rows[index], expected[index]
        if row.ends_as != "succeeded":
            response = json.loads(line)["response"] or {"status_code": 500}
            if response["status_code"] < 400:
                raise OracleFailure(f"{job.id} {row.custom_id}: it was to end as {row.ends_as}: {line!r}")
            continue
        wanted_line = result.native_line() if job.face is Face.NATIVE else result.openai_line()
        if line != wanted_line:
            raise OracleFailure(f"{job.id} {row.custom_id}: {line!r} is not {wanted_line!r}")


def _output_order(job: BulkJob) -> list[int]:
    """Which row each line of the output is of: failed rows are in files of their own."""
    indices = range(len(job.rows))
    return sorted(indices, key=lambda index: job.rows[index].ends_as != "succeeded")


def output_lines(service: Service, job: BulkJob, stored: StoredJob) -> list[bytes]:
    """Every line a job has left, those of failed rows included."""
    if job.face is Face.NATIVE:
        return _part_lines(service, job, stored)
    with service.http() as http:
        ids = [id for id in (stored.output_file_id, stored.error_file_id) if id is not None]
        contents = [http.get(f"/v1/files/{id}/content").raise_for_status().content for id in ids]
    return b"".join(contents).splitlines(keepends=True)


def _part_lines(service: Service, job: BulkJob, stored: StoredJob) -> list[bytes]:
    """The lines of a native job's parts, each of which is as its manifest says."""
    manifest = json.loads(service.read_file(f"{job.output}_manifest.json"))
    if stored.state is JobState.SUCCEEDED:
        service.read_file(f"{job.output}_SUCCESS")
    lines: list[bytes] = []
    for part in (*manifest["parts"], *manifest["errors"]):
        data = service.read_file(job.output + part["name"])
        if (hashlib.sha256(data).hexdigest(), len(data)) != (part["sha256"], part["size_bytes"]):
            raise OracleFailure(f"{job.id} {part['name']}: it is not what the manifest says")
        lines += data.splitlines(keepends=True)
    counts = manifest["counts"]
    if (counts["total"], counts["succeeded"]) != (stored.counts.total, stored.counts.succeeded):
        raise OracleFailure(f"{job.id}: the manifest counts {counts}, the database {stored.counts}")
    return lines


def _check_online(service: Service, job: OnlineJob, stored: StoredJob) -> None:
    with service.client() as client:
        try:
            (line,) = client.results(job.id)
        except (NightshiftError, ValueError) as error:
            raise OracleFailure(f"{job.id}: it has not exactly one result: {error}") from error
    if job.row.ends_as != "succeeded":
        if line["outcome"] == "succeeded":
            raise OracleFailure(f"{job.id}: it was to end as {job.row.ends_as}: {line}")
        return
    if stored.state is not JobState.SUCCEEDED:
        raise OracleFailure(f"{job.id} has ended as {stored.state}: {stored.errors}")
    identity = Identity(job.id, int(stored.created_at.timestamp()))
    result = expected_results(service, stored, [job.row], [identity])[0]
    origin = Origin(identity, service.model, stored.priority)
    body = endpoints.get(stored.spec.endpoint).body_of(origin, result)
    if line["response"]["body"] != body:
        raise OracleFailure(f"{job.id}: {line['response']['body']} is not {body}")


# -- webhooks ------------------------------------------------------------------------------------------


def _check_webhooks(service: Service, jobs: Sequence[Job]) -> int:
    """Every job's end was told, always under one id. Returns how many were told more than once."""
    told: dict[str, list[tuple[str, str]]] = {}
    for request in service.receiver.requests:
        event: dict[str, Any] = json.loads(request.body)
        told.setdefault(event["data"]["id"], []).append((event["type"], request.headers["webhook-id"]))
    repeated = 0
    for job in jobs:
        is_batch = isinstance(job, BulkJob) and job.face is Face.OPENAI
        heard = told.get(batch_id(job.id) if is_batch else job.id, [])
        if len(set(heard)) != 1:
            raise OracleFailure(f"{job.id}: its webhook was told as {sorted(set(heard))}")
        repeated += len(heard) > 1
    return repeated
