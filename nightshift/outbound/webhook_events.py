"""The types of webhook events, which of them a receiver asks for, and an event's body."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from nightshift.jobs import Face, Job, JobKind, JobProblem, JobState, JsonObject
from nightshift.jobs.ids import batch_id

ALL: Final = "*"
_FAMILY: Final = ".*"  # `job.*` stands for every type that begins with `job.`

BATCH_EVENT: Final = {
    JobState.SUCCEEDED: "batch.completed",
    JobState.FAILED: "batch.failed",
    JobState.CANCELLED: "batch.cancelled",
    JobState.EXPIRED: "batch.expired",
}


RUNNING: Final = "job.running"
PROGRESS: Final = "job.progress"
PROBLEM: Final = "job.problem"
AT_RISK: Final = "run.at_risk"
ON_TRACK: Final = "run.on_track"
MISSED: Final = "run.missed"


@dataclass(frozen=True)
class EventType:
    """A type of event. One that is `opt_in` goes only to receivers that name it: it is in no wildcard, and
    not what a webhook without a list of events gets. `is_passing`: it says how a running job is at present. A
    newer one replaces it, the job's end outdates it, and it becomes no dead letter.
    """

    name: str
    opt_in: bool = False
    is_passing: bool = False


# What is not in this table can be neither asked for nor sent.
EVENT_TYPES: Final[Mapping[str, EventType]] = {
    type.name: type
    for type in (
        *(EventType(name) for name in BATCH_EVENT.values()),
        *(EventType(f"job.{state}") for state in BATCH_EVENT),
        EventType(RUNNING, opt_in=True),
        EventType(PROGRESS, opt_in=True, is_passing=True),
        EventType(PROBLEM, opt_in=True, is_passing=True),
        *(EventType(name, opt_in=True) for name in (AT_RISK, ON_TRACK, MISSED)),
    )
}
PASSING: Final = tuple(type.name for type in EVENT_TYPES.values() if type.is_passing)
WILDCARDS: Final = frozenset(
    {ALL} | {f"{type.name.partition('.')[0]}{_FAMILY}" for type in EVENT_TYPES.values() if not type.opt_in}
)


def event_type(job: Job) -> str | None:
    """The event of an ended job, named as on its route. None: its request was answered with the result, as
    on OpenAI's routes that are no batches.
    """
    if job.face is not Face.OPENAI:
        return f"job.{job.state}"
    return BATCH_EVENT[job.state] if job.kind is JobKind.BULK else None


def wants(events: Sequence[str], event_type: str) -> bool:
    """Whether a job's own webhook gets this event. No list means every one that is not `opt_in`. Both
    faces' event names are accepted.
    """
    if not events:
        return not EVENT_TYPES[event_type].opt_in
    job_names = {batch: f"job.{state}" for state, batch in BATCH_EVENT.items()}
    return event_type in events or any(
        job_names.get(event, event) == job_names.get(event_type, event_type) for event in events
    )


def is_subscribed(wishes: Sequence[str], event_type: str) -> bool:
    """Whether a webhook endpoint gets this event: named, or in a wildcard such as `job.*`."""
    if event_type in wishes:
        return True
    return not EVENT_TYPES[event_type].opt_in and any(
        wish == ALL or (wish.endswith(_FAMILY) and event_type.startswith(wish.removesuffix(ALL)))
        for wish in wishes
    )


def event_body(event_id: str, event_type: str, job: Job, at: datetime, more: Mapping[str, Any] = {}) -> str:
    """A job event's final body: ids and counts, never results, and what `more` says. Progress has the percent
    that is done, and as `job.problem` what keeps the job from going on.
    """
    subject = batch_id(job.id) if job.face is Face.OPENAI else job.id
    counts = {"total": job.counts.total, "succeeded": job.counts.succeeded, "failed": job.counts.failed}
    data: JsonObject = {"id": subject, "counts": counts, **more}
    if event_type == PROGRESS:
        data["percent"] = percent_done(job)
    if event_type in PASSING:
        data["problem"] = problem_json(job.problem)
    return _body(event_id, event_type, data, at)


def problem_json(problem: JobProblem | None) -> JsonObject | None:
    """A problem, as webhooks and events have it."""
    if problem is None:
        return None
    error, since = problem.error, int(problem.since.timestamp())
    return {"code": error.code, "message": error.message, "param": error.param, "since": since}


def percent_done(job: Job) -> int | None:
    """The whole percent of a job's rows that have a result; of an estimate, at most 99. None: their number
    is unknown.
    """
    expected = job.rows_expected
    if not expected:
        return None
    done = 100 * (job.counts.succeeded + job.counts.failed) // expected
    return min(done, 100 if job.counts.total is not None else 99)


def percent_said(body: str) -> int:
    """The percent in the body of a progress event."""
    return int(json.loads(body)["data"]["percent"])


def sample_body(event_id: str, event_type: str, at: datetime) -> str:
    """The body of a test event. Its `data` says that it is one, and names no job that exists."""
    counts = {"total": 1, "succeeded": 1, "failed": 0}
    data: JsonObject = {
        "id": f"{'batch' if event_type.startswith('batch.') else 'job'}_test",
        "counts": counts,
        "test": True,
    }
    if event_type == PROGRESS:
        data["percent"] = 100
    if event_type in PASSING:
        data["problem"] = None
    return _body(event_id, event_type, data, at)


def _body(event_id: str, event_type: str, data: JsonObject, at: datetime) -> str:
    event = {
        "id": event_id,
        "object": "event",
        "created_at": int(at.timestamp()),
        "type": event_type,
        "data": data,
    }
    return json.dumps(event, separators=(",", ":"))
