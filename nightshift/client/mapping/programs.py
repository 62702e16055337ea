"""The steps of a call, as exchanges: begin or find its job, follow it, read its answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

import httpx

from nightshift.client.answers import (
    RETRY,
    ApiError,
    RemoteJob,
    api_error,
    json_object,
    segment,
)
from nightshift.client.exchanges import (
    FOLLOWING_TRIES_MAX,
    TRIES_MAX,
    Call,
    Exchange,
    Pause,
    answered,
    unreachable,
)
from nightshift.client.mapping.calls import MapCall, MapOptions, form_of_job, key_of_job
from nightshift.client.mapping.progress import progress_bar
from nightshift.client.mapping.results import NOT_RUN, Answers, FailedRow, MapFailed, MapResult
from nightshift.client.mapping.rows import MapData, data_of, places_of, table_of_keys
from nightshift.client.mapping.tables import Table, table_of
from nightshift.client.uploads import PART_BYTES, uploaded
from nightshift.errors import InvalidRequest
from nightshift.jobs import JobState, JsonObject

RUNS_LOOKED_AT_MAX: Final = 100  # the newest of a name
FILENAME: Final = "rows.jsonl"
FIRST_LOOK_S: Final = 0.2
LOOK_S_MAX: Final = 2.0
LOOKS_RARER: Final = 1.5
KEY_REUSED: Final = "idempotency_key_reused"

Show = Callable[[RemoteJob], None]


@dataclass(frozen=True)
class Started:
    """A call's job. `known`: what was sent by this process."""

    job: RemoteJob
    known: MapData | None = None

    @property
    def name(self) -> str:
        return str(self.job.data.get("name"))


def started(data: object, prompt: str, **options: Unpack[MapOptions]) -> Exchange[Started]:
    """Checks everything, then begins the call or finds its job. Raises InvalidRequest before anything is
    sent, ApiError, ServerUnreachable.
    """
    call = MapCall.checked(prompt, **options)
    known = data_of(data, call)
    try:
        job = yield from begun(call, known)
    finally:
        known.close()
    return Started((yield from described(job.id)), known)


def attached(name: str) -> Exchange[Started]:
    """The newest job of a name. Raises InvalidRequest where there is none, or it is of something else."""
    runs = yield from _runs(name)
    if not runs:
        raise InvalidRequest(
            f"Invalid 'name': no call has the name '{name}'.", param="name", code="not_found"
        )
    job = yield from described(runs[0].id)
    form_of_job(job)
    return Started(job)


def finished(started: Started, data: object, *, partial: bool, progress: bool) -> Exchange[MapResult]:
    """The result, once the job has ended. Raises MapFailed, InvalidRequest, ApiError, ServerUnreachable."""
    with progress_bar(started.name, is_wanted=progress) as show:
        job = yield from ended(started.job.id, show)
    return (yield from joined(job, data, started.known, partial=partial))


def begun(call: MapCall, data: MapData) -> Exchange[RemoteJob]:
    """The job of this call over these data: one that runs or has all answers, else a new one, which reuses
    the answers of an earlier one. Raises InvalidRequest, ApiError, ServerUnreachable.
    """
    input = data.location
    for attempt in range(TRIES_MAX):
        runs = yield from _runs(call.name)
        if runs and not call.is_of(runs[0]):
            raise call.objection((yield from described(runs[0].id)))
        same = [run for run in runs if _date(run).rpartition("-")[0] == data.digest]
        if same and _is_current(same[0], data):
            return same[0]
        # A run that is too old to be listed has its number, too.
        number = 1 + max([attempt, *(int(_date(run).rpartition("-")[2]) for run in same)])
        input = input or (yield from _uploaded(data))
        reuse = _to_reuse([run for run in runs if call.is_of(run)])
        body = call.job(input, data.id_field, f"{data.digest}-{number}", reuse)
        try:
            answer = yield from answered(Call(method="POST", path="/v1/jobs", json=body))
        except ApiError as error:
            if error.code != KEY_REUSED or attempt + 1 == TRIES_MAX:
                raise
        else:
            return RemoteJob.from_json(json_object(answer))
    raise AssertionError("the last attempt returns or raises")


def described(job_id: str) -> Exchange[RemoteJob]:
    return RemoteJob.from_json((yield from _json(_of_job("GET", job_id), is_following=True)))


def cancelled(job_id: str) -> Exchange[RemoteJob]:
    return RemoteJob.from_json((yield from _json(_of_job("POST", job_id, "/cancel"))))


def ended(job_id: str, show: Show) -> Exchange[RemoteJob]:
    """The job, once it has ended. `show` is called with each look at it."""
    pause_s = FIRST_LOOK_S
    while True:
        job = yield from described(job_id)
        show(job)
        if job.state.is_terminal:
            return job
        yield Pause(pause_s)
        pause_s = min(pause_s * LOOKS_RARER, LOOK_S_MAX)


def joined(job: RemoteJob, data: object, known: MapData | None, *, partial: bool) -> Exchange[MapResult]:
    """The answers of a job that has ended, joined to `data`, or to what was sent (`known`), or else to their
    keys. Raises MapFailed for a job that did not succeed, unless a part will do.
    """
    if job.state is not JobState.SUCCEEDED and not partial:
        raise MapFailed(job)
    form, key = form_of_job(job), key_of_job(job)
    location = job.data.get("output")
    answers = Answers(form, keeps_values=location is None)
    table = known.table if known is not None and data is None else None
    places = known.places if known is not None and data is None else {}
    if data is not None:
        table = table_of(data)
        places = places_of(table, key)
    yield from _collected(job.id, answers)
    if location is not None:
        return MapResult(location, list(answers.failed.values()), job)
    if table is None:
        table = table_of_keys([*answers.values, *answers.failed], key)
        places = places_of(table, key or "row")
    return _result(job, table, list(places), answers)


def _result(job: RemoteJob, table: Table, ids: Sequence[str], answers: Answers) -> MapResult:
    columns = answers.form.columns
    values: dict[str, list[Any]] = {name: [] for name in columns}
    failed = []
    for id in ids:
        answer = answers.values.get(id)
        if answer is None:
            failed.append(answers.failed.get(id) or _not_run(id, job))
        for name in columns:
            values[name].append(None if answer is None else answer[name])
    return MapResult(table.with_columns(columns, values), failed, job)


def _not_run(id: str, job: RemoteJob) -> FailedRow:
    reason = job.errors[0] if job.errors else f"{job.id}, which {job.state}, has no result of this row."
    return FailedRow(id, NOT_RUN, reason)


def _runs(name: str) -> Exchange[list[RemoteJob]]:
    query = {"name": name, "limit": str(RUNS_LOOKED_AT_MAX)}
    listing = yield from _json(Call(method="GET", path="/v1/jobs", params=query))
    return [RemoteJob.from_json(job) for job in listing["data"]]


def _date(run: RemoteJob) -> str:
    return str(run.data.get("date") or "")


def _is_current(run: RemoteJob, data: MapData) -> bool:
    """Whether the run answers the call: it is under way, or has all answers to rows that cannot change."""
    if not run.state.is_terminal:
        return run.data.get("stop_requested_at") is None
    has_all = run.state is JobState.SUCCEEDED and not run.counts.failed
    return has_all and data.location is None and run.data.get("results_deleted_at") is None


def _to_reuse(runs: Sequence[RemoteJob]) -> str | None:
    """The ended run with the most answers, back to the newest that succeeded."""
    usable = [run for run in runs if run.state.is_terminal and run.data.get("results_deleted_at") is None]
    newest = next((at for at, run in enumerate(usable) if run.state is JobState.SUCCEEDED), len(usable))
    best = max(usable[: newest + 1], key=lambda run: run.counts.succeeded, default=None)
    return best.id if best is not None and best.counts.succeeded else None


def _uploaded(data: MapData) -> Exchange[str]:
    """The id of a file with the rows."""
    assert data.file is not None, "rows of a table are in a file"
    data.file.seek(0)
    if data.size_bytes <= PART_BYTES:
        files = {"file": (FILENAME, data.file.read())}
        call = Call(method="POST", path="/v1/files", form={"purpose": "batch"}, files=files)
        return str((yield from _json(call))["id"])
    wanted = {"bytes": data.size_bytes, "filename": FILENAME, "mime_type": "application/jsonl"}
    return (yield from uploaded(data.file, wanted | {"purpose": "batch"}))


def _collected(job_id: str, answers: Answers) -> Exchange[None]:
    """Reads all results; a broken stream is resumed behind the last whole line. Raises ApiError,
    ServerUnreachable.
    """
    failures, read = 0, None
    while True:
        answers.begin()
        query = {"after": answers.last_id} if answers.last_id else None
        call = Call(
            method="GET",
            path=f"/v1/jobs/{segment(job_id)}/results",
            params=query,
            headers={"accept": "application/x-ndjson"},
            sink=answers.take,
        )
        try:
            answer: httpx.Response = yield call
            if not answer.is_error:
                return
            refused = api_error(answer)
            trouble: Exception = refused
            delay_s = refused.retry_after_s if refused.is_passing else None
            is_over = not refused.is_passing
        except httpx.TransportError as error:
            trouble, delay_s, is_over = unreachable(error), None, False
        failures = failures + 1 if answers.last_id == read else 1
        read = answers.last_id
        if is_over or failures >= TRIES_MAX:
            raise trouble
        yield Pause(delay_s or RETRY.delay_s(failures))


def _of_job(method: str, job_id: str, rest: str = "") -> Call:
    return Call(method=method, path=f"/v1/jobs/{segment(job_id)}{rest}")


def _json(call: Call, *, is_following: bool = False) -> Exchange[JsonObject]:
    tries = FOLLOWING_TRIES_MAX if is_following else TRIES_MAX
    return json_object((yield from answered(call, tries=tries, is_following=is_following)))
