"""One job: what it is, how far it is, what came of it, and its life."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final

from api.access import take_rates
from api.bodies.jobs import options_json
from api.dependencies import get_job
from api.jobs import controls as job_controls
from api.jobs import routes as jobs
from api.jobs.results import rows_of
from api.jobs.views import queue_positions
from api.page.view import Action, Context, Outcome, PageRequest, View
from api.page.views.job_rows import JobRow
from api.page.views.timeline import sampled, timeline
from api.responses.times import window_text
from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import read_segment
from nightshift.bulk.rows.requests import without_place
from nightshift.errors import InvalidRequest, NightshiftError
from nightshift.jobs import Face, Job, JobKind, JobState
from nightshift.jobs.ids import batch_id, job_id_of_batch
from nightshift.jobs.options import BulkOptions
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import retry
from nightshift.lifecycle.problems import shown_problem
from nightshift.objectstore import ObjectStore
from nightshift.store import Transaction
from nightshift.store.shards.shards import ListedSegment

SEGMENTS_MAX: Final = 16  # the newest with failed rows
SEGMENT_BYTES_MAX: Final = 8 * 1024 * 1024  # larger ones are not read
ROWS_MAX: Final = 2000  # failed ones
GROUPS_MAX: Final = 20
MESSAGE_CHARS_MAX: Final = 300  # by which rows are alike
EXAMPLES_MAX: Final = 3  # ids of rows, of each group
MOMENTS_MAX: Final = 200  # the newest
LEASES_SHOWN: Final = 20
PARTS_SHOWN: Final = 20
RETRIES_SHOWN: Final = 20
RESULTS_SHOWN: Final = 10
ROW_SHOWN_BYTES_MAX: Final = 256 * 1024
ID_CHARS_MAX: Final = 64
SHOW: Final = ("errors", "results")  # read only when asked for, since it is in the object store


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant_id, given_id = request.caller.tenant_id, request.path["job_id"]
    job = get_job(tx, request.caller, job_id_of_batch(given_id) or given_id)
    row = JobRow(job, now, request.services.settings.api.prices)
    last_seq = tx.events.last_seq(job.id)
    milestones = tx.events.milestones(tenant_id, job.id, MOMENTS_MAX)
    samples = tx.events.at(tenant_id, job.id, sampled(last_seq)) if job.kind is JobKind.BULK else ()
    show = request.text("show")
    if show is not None and show not in SHOW:
        raise InvalidRequest(f"Invalid 'show': {show!r} is none of {', '.join(SHOW)}.", param="show")
    return {
        "title": row.label,
        "row": row,
        "position": queue_positions(tx, [job]).get(job.id),
        "facts": _facts(job),
        "shards": tx.shards.states(job.id) if job.kind is JobKind.BULK else {},
        "leases": tx.shards.leased_of(tenant_id, job.id, LEASES_SHOWN),
        "part_states": tx.parts.states(job.id),
        "parts": tx.parts.of_job(job.id, limit=PARTS_SHOWN),
        "problem": shown_problem(tx, job, now),
        "retries": tx.jobs.retries(tenant_id, job.id, RETRIES_SHOWN),
        "timeline": timeline(job, milestones, samples, last_seq, now),
        "can": _can(job),
        "priorities": list(PriorityClass),
        "show": show,
        "failing": _failing(tx, job) if show == "errors" else (),
    }


def read_objects(request: PageRequest, loaded: Context) -> Context:
    """Reads the rows that the request names."""
    job: Job = loaded["row"].job
    shown: dict[str, Any] = {"errors": None, "results": None, "unreadable": None}
    try:
        if loaded["show"] == "errors" and job.results_deleted_at is None:
            shown["errors"] = grouped(request.services.objects, loaded["failing"])
        elif loaded["show"] == "results":
            lines = islice(rows_of(request.services, job, None, RESULTS_SHOWN), RESULTS_SHOWN)
            shown["results"] = [_shown_row(line) for line in lines]
    except NightshiftError as error:
        shown["unreadable"] = error.message
    return shown


def _failing(tx: Transaction, job: Job) -> Sequence[ListedSegment]:
    return tx.shards.segments_with_failures(job.tenant_id, job.id, SEGMENTS_MAX)


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _shown_row(line: bytes) -> dict[str, Any]:
    """One that is too large for a page is shown as it begins."""
    if len(line) > ROW_SHOWN_BYTES_MAX:
        start = line[:ROW_SHOWN_BYTES_MAX].decode(errors="replace")
        return {"custom_id": None, "status_code": None, "text": f"{start} … ({len(line)} bytes)"}
    row: dict[str, Any] = json.loads(line)
    response = row.get("response") or {}
    body = row.get("error") or response.get("body")
    return {
        "custom_id": row.get("custom_id") or row.get("id"),
        "status_code": response.get("status_code"),
        "text": json.dumps(body, ensure_ascii=False, indent=1),
    }


def _facts(job: Job) -> list[tuple[str, str]]:
    """Names and values, in words, of what the job's request said."""
    spec = job.spec
    webhook = spec.webhook
    said: list[tuple[str, object]] = [
        ("Batch", batch_id(job.id) if (job.kind, job.face) == (JobKind.BULK, Face.OPENAI) else None),
        ("Endpoint", spec.endpoint),
        ("Model", job.model),
        ("Class", job.priority),
        ("Input", ", ".join(spec.inputs) or None),
        ("Output", spec.output),
        ("Output file", job.output_file_id),
        ("Error file", job.error_file_id),
        ("To be over within", window_text(spec.completion_window_s)),
        ("Window", spec.window),
        ("Goes on", None if job.resumes_at is None else f"{job.resumes_at:%Y-%m-%d %H:%M} UTC"),
        ("Outlook", None if job.outlook is None else job.outlook.replace("_", " ")),
        ("Longest run", None if spec.max_runtime_s is None else window_text(spec.max_runtime_s)),
        ("Capacity", None if spec.capacity == "any" else spec.capacity.replace("_", " ")),
        ("Webhook", None if webhook is None else webhook.url),
        ("Reuses", spec.reused_job),
        *_changed_options(spec.options),
        *((f"Metadata · {name}", value) for name, value in (spec.metadata or {}).items()),
    ]
    return [(name, _value_text(value)) for name, value in said if value not in (None, "")]


def _changed_options(options: BulkOptions) -> list[tuple[str, object]]:
    """The options that have another value than their default."""
    defaults = options_json(BulkOptions())
    return [(_words(name), value) for name, value in options_json(options).items() if value != defaults[name]]


def _value_text(value: object) -> str:
    """A value as a person writes it: a list of names with commas, `yes` or `no`."""
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple():
            return ", ".join(value)
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _can(job: Job) -> set[str]:
    """The actions that make sense now; the transaction decides."""
    is_open = not job.state.is_terminal and job.stop_reason is None
    may_run = job.state in (JobState.QUEUED, JobState.RUNNING)
    actions = {"cancel", "priority"} if is_open and may_run else set()
    if is_open and may_run and job.kind is JobKind.BULK:
        is_for_people = job.paused_at is not None and job.resumes_at is None
        actions.add("resume" if is_for_people else "pause")
    try:
        retry.check(job)
    except NightshiftError:
        return actions
    return actions | {"retry"}


def cancel(request: PageRequest) -> Outcome:
    jobs.cancel_job(request.path["job_id"], request.services, request.caller)
    return Outcome(message="The job is told to stop. What is done stays.")


def pause(request: PageRequest) -> Outcome:
    job_controls.pause_job(request.path["job_id"], request.services, request.caller)
    return Outcome(message="The job is paused. Workers hand back what they have of it.")


def resume(request: PageRequest) -> Outcome:
    job_controls.resume_job(request.path["job_id"], request.services, request.caller)
    return Outcome(message="The job goes on.")


async def prioritise(request: PageRequest) -> Outcome:
    body = {"priority": request.form.get("priority")}
    await job_controls.change_job(request.path["job_id"], request.services, request.caller, body)
    return Outcome(message="The job's class is changed.")


async def retry_failed(request: PageRequest) -> Outcome:
    """One job of a form that is sent twice, or in two tabs: both show the same newest retry, or none."""
    await take_rates(request.services.rate_limits, request.caller, {}, 0, {})
    job_id, newest = request.path["job_id"], request.form.get("newest")
    once = None if newest is None else f"page:{job_id}:{newest[:ID_CHARS_MAX]}"
    answer = await job_controls.retry_job(job_id, request.services, request.caller, {}, once, None)
    new_id = json.loads(bytes(answer.body))["id"]
    return Outcome(message="The rows that failed run again as a new job.", location=f"/ui/jobs/{new_id}")


@dataclass(frozen=True)
class ErrorGroup:
    status_code: int
    code: str
    message: str
    rows: int
    examples: Sequence[str]  # custom ids


@dataclass(frozen=True)
class Grouped:
    """`rows`: the failed ones that were looked at."""

    groups: Sequence[ErrorGroup]
    rows: int


def grouped(objects: ObjectStore, listed: Iterable[ListedSegment]) -> Grouped:
    """Blocks on the object store. Raises StorageError."""
    counts: Counter[tuple[int, str, str]] = Counter()
    examples: dict[tuple[int, str, str], list[str]] = {}
    for row in islice(_failed(objects, listed), ROWS_MAX):
        kind = _kind(row)
        counts[kind] += 1
        known = examples.setdefault(kind, [])
        if len(known) < EXAMPLES_MAX:
            known.append(row.custom_id)
    groups = [
        ErrorGroup(*kind, rows=rows, examples=examples[kind]) for kind, rows in counts.most_common(GROUPS_MAX)
    ]
    return Grouped(groups, counts.total())


def _failed(objects: ObjectStore, listed: Iterable[ListedSegment]) -> Iterable[RowResult]:
    for one in listed:
        if one.segment.size_bytes <= SEGMENT_BYTES_MAX:
            yield from (row for row in read_segment(objects, one.segment) if not row.succeeded)


def _kind(row: RowResult) -> tuple[int, str, str]:
    try:
        error: Any = row.body.get("error") or {}
    except (NightshiftError, ValueError):
        error = {}
    code, message = str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    return row.status_code, code[:MESSAGE_CHARS_MAX], without_place(message)[:MESSAGE_CHARS_MAX]


VIEW: Final = View(
    path="/ui/jobs/{job_id}",
    title="Job",
    template="jobs/job.html",
    load=load,
    read_objects=read_objects,
    is_in_navigation=False,
    section="/ui/jobs",
    actions=(
        Action(path="/cancel", act=cancel),
        Action(path="/pause", act=pause),
        Action(path="/resume", act=resume),
        Action(path="/priority", act=prioritise),
        Action(path="/retry", act=retry_failed),
    ),
)
