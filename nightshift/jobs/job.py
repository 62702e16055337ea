"""Jobs and the states they pass through.

A **job** is one request (online) or an input of many rows (bulk). Its rows run in **shards**, the unit of
leasing; an online job has one shard of one row.

    job     queued ──► running ──► finalizing ──► succeeded
              │           │            ├────────► failed
              └───────────┴────────────┼────────► cancelled
              (online jobs skip        └────────► expired
               finalizing)
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from nightshift.fleet.costs import NO_TIME, WorkerTime
from nightshift.jobs.json_text import LARGE_BYTES, json_bytes, json_text, loads
from nightshift.jobs.options import BulkOptions
from nightshift.jobs.planning import FIRST_PAGE, PlanCursor
from nightshift.jobs.priorities import PriorityClass
from nightshift.schedules.windows import Window, parse_window

JsonObject = dict[str, Any]


class JobState(StrEnum):
    QUEUED = "queued"  # no row has started
    RUNNING = "running"  # a shard was claimed
    FINALIZING = "finalizing"  # the output is being assembled
    SUCCEEDED = "succeeded"  # every row has its result or error
    FAILED = "failed"  # input unreadable, system failure, or too many failed rows
    CANCELLED = "cancelled"  # on request; partial output kept
    EXPIRED = "expired"  # the window or max_runtime ended; partial output kept

    @property
    def is_terminal(self) -> bool:
        return not JOB_TRANSITIONS[self]


JOB_TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.QUEUED: frozenset(
        {JobState.RUNNING, JobState.FINALIZING, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.FINALIZING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    ),
    JobState.FINALIZING: frozenset(
        {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}


def sources(state: JobState) -> tuple[JobState, ...]:
    """The states from which a job may enter this one."""
    return tuple(origin for origin, targets in JOB_TRANSITIONS.items() if state in targets)


class StopReason(StrEnum):
    """The reason why a job starts no more rows. The first reason stays."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"

    @property
    def final_state(self) -> JobState:
        return JobState(self.value)

    @property
    def row_error_code(self) -> str:
        """Error code of rows that never ran."""
        return f"batch_{self.value}"


class Outlook(StrEnum):
    """The prediction for a bulk job that its owner was told last."""

    AT_RISK = "at_risk"  # its rows will not be done by the end of its window, or by its deadline
    ON_TRACK = "on_track"  # they will after all


class JobKind(StrEnum):
    ONLINE = "online"
    BULK = "bulk"


class Face(StrEnum):
    """The route a job came in by; it decides validation and output layout."""

    NATIVE = "native"  # /v1/jobs: part files under an output prefix
    OPENAI = "openai"  # /v1/batches: validation first, one output file and one error file


@dataclass(frozen=True)
class Webhook:
    """A job's webhook. The signing secret is stored apart, encrypted."""

    url: str
    events: tuple[str, ...]  # event types; empty means every terminal one


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The request as accepted. Only its metadata changes."""

    endpoint: str  # its route
    completion_window_s: int
    input: str | None = None  # `s3://…`, `file:///…` or `file-…`; None for an online job
    output: str | None = None  # prefix; None for an online or OpenAI job
    template: JsonObject | None = None  # has {{column}} placeholders; None: rows are requests
    id_column: str | None = None  # the column that becomes custom_id; None: the row's number
    format: str = "jsonl"  # jsonl or parquet
    max_runtime_s: int | None = None  # from the first claim
    retry_on_interrupt: bool = True
    capacity: str = "any"  # spot, on_demand or any
    window: str | None = (
        None  # hours of the day in which its rows run, as `parse_window` reads them; None: all
    )
    output_expires_after_s: int | None = None  # OpenAI output files
    webhook: Webhook | None = None
    metadata: dict[str, str] | None = None
    name: str | None = None  # key of a nightly run, together with run_date
    run_date: str | None = None
    options: BulkOptions = field(default_factory=BulkOptions)
    reused_job: str | None = None  # the id of the job that `options.reuse` stands for
    kept_in: str | None = None  # a retry's field for what is kept of the earlier job's rows
    service_tier: str | None = None  # echoed on OpenAI answers
    storing: JsonObject | None = None  # of a stored response: how it was asked for; None: it is not one

    @property
    def hours(self) -> Window | None:
        """The window, read. None: its rows run at any time."""
        return None if self.window is None else parse_window(self.window)

    @property
    def stored_bytes(self) -> int:
        """Bytes of its long parts, as JSON: they count toward the quota `stored_bytes`."""
        parts = (self.template, self.metadata, self.webhook and self.webhook.url)
        return sum(json_bytes(part) for part in parts if part is not None)

    def to_json(self) -> JsonObject:
        """The fields that are set. Templates and metadata are not copied."""
        known = {key: value for key, value in vars(self).items() if value is not None}
        known |= known.pop("options").to_json()
        return known if self.webhook is None else known | {"webhook": asdict(self.webhook)}

    @classmethod
    def from_json(cls, data: JsonObject) -> "JobSpec":
        known = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        webhook = known.pop("webhook", None)
        spec = cls(**known | {"options": BulkOptions.from_json(data)})
        if webhook is None:
            return spec
        return replace(spec, webhook=Webhook(url=webhook["url"], events=tuple(webhook["events"])))


@dataclass(frozen=True)
class Counts:
    """Rows of a job. `total` is None until known; every terminal job knows it."""

    total: int | None = None
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens read from the prefix cache
    reasoning_tokens: int = 0  # completion tokens of thoughts and their markers

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True)
class InputError:
    """A problem in a job's input. `line` is 1-based; None when it concerns the whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that was met in a job's work, which is tried again."""

    error: InputError
    met_at: datetime | None = None  # last; None: it is not recorded
    next_attempt_at: datetime | None = None  # None: it is not known
    is_permanent: bool = False  # the job fails with it: trying again would not help

    def to_json(self) -> JsonObject:
        at_s = None if self.met_at is None else self.met_at.timestamp()
        return {"code": self.error.code, "message": self.error.message, "param": self.error.param, "at": at_s}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Fault":
        error = InputError(data["code"], data["message"], param=data["param"])
        return cls(
            error=error, met_at=None if data["at"] is None else datetime.fromtimestamp(data["at"], UTC)
        )


@dataclass(frozen=True)
class JobProblem:
    """The reason why a job does not go on at present, as recorded when it was first seen."""

    error: InputError
    since: datetime


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as it is now. Times are the database's, aware, UTC; None means not yet."""

    id: str
    tenant_id: str
    kind: JobKind
    face: Face
    state: JobState
    priority: PriorityClass
    model: str | None  # None until the input has been read
    spec: JobSpec
    counts: Counts
    usage: Usage
    created_at: datetime
    deadline_at: datetime  # created_at + completion window
    planned_at: datetime | None = None  # all of the input is cut into shards
    started_at: datetime | None = None  # first claim
    finalizing_at: datetime | None = None
    finished_at: datetime | None = None
    stop_reason: StopReason | None = None
    stop_requested_at: datetime | None = None
    paused_at: datetime | None = None  # since when no shard of it is claimed
    window_turns_at: datetime | None = None  # its window ends, or opens if it is paused until then
    outlook: Outlook | None = None  # None: nothing was told since its window opened
    rows_estimated: int | None = None  # from a sample, of what is cut; for progress only
    errors: tuple[InputError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    tokens_redone: int = 0  # generated, lost with a worker, and generated again
    rows_reused: int = 0  # rows with the result of another row
    rows_unlisted: int = 0  # rows that were not run, count as failed, and have no line in the output
    worker_time: WorkerTime = NO_TIME  # time that its shards have taken, lost attempts included
    retry_of: str | None = None  # the job whose rows without success it runs
    tokens_queued: int = 0  # what it counts for in its tenant's quota until it ends, as estimated
    planning_attempts: int = 0  # begun, and without a known end: each may have killed its scheduler
    plan_cursor: PlanCursor = FIRST_PAGE  # where the next page of shards begins
    results_deleted_at: datetime | None = None  # its rows' requests and results had their time
    traceparent: str | None = None  # the span that submitted it, as W3C has it; None: it is not traced
    problem: JobProblem | None = None  # a bulk job's; None: there is none, or the job has ended
    problem_changes: int = 0  # how often `problem` has changed

    @property
    def resumes_at(self) -> datetime | None:
        """The opening of its window, if that is what it is paused for."""
        return None if self.paused_at is None else self.window_turns_at

    @property
    def due_at(self) -> datetime:
        """The time by which its rows are to be done: the end of its open window, or else its deadline."""
        closes_at = self.window_turns_at if self.paused_at is None else None
        return self.deadline_at if closes_at is None else min(closes_at, self.deadline_at)

    @property
    def has_shards(self) -> bool:
        """Whether any of a bulk job's input is cut."""
        return self.planned_at is not None or self.plan_cursor.shards > 0

    @property
    def rows_expected(self) -> int | None:
        """About how many rows there are, once all of the input is cut."""
        if self.counts.total is not None:
            return self.counts.total
        return self.rows_estimated if self.planned_at is not None else None


@dataclass(frozen=True)
class Answer:
    """A model's answer: an HTTP-like status and a body."""

    status_code: int
    body: JsonObject
    usage: Usage

    @property
    def succeeded(self) -> bool:
        return self.status_code < 400


@dataclass(frozen=True)
class RecordedAnswer:
    """A model's answer as it is stored. It may be large, and is sent on as it is wherever that will do."""

    status_code: int
    text: str  # the body as JSON
    usage: Usage

    @classmethod
    def from_answer(cls, answer: Answer) -> "RecordedAnswer":
        return cls(answer.status_code, json_text(answer.body), answer.usage)

    @property
    def succeeded(self) -> bool:
        return self.status_code < 400

    @property
    def is_large(self) -> bool:
        return len(self.text) > LARGE_BYTES

    @property
    def body(self) -> JsonObject:
        """The body, read anew at each call."""
        body: JsonObject = loads(self.text)
        return body


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job as it is created."""

    id: str
    tenant_id: str
    kind: JobKind
    face: Face
    priority: PriorityClass
    model: str | None
    spec: JobSpec
    fingerprint: str
    webhook_secret: bytes | None = None  # encrypted
    retry_of: str | None = None
    tokens_queued: int = 0  # an online request's; a bulk job's are known once it is planned
    body_bytes: int = 0  # size of an online job's body, as JSON
    stored_bytes: int = 0  # size of its body and of the counted parts of its spec, as JSON
    traceparent: str | None = None

    def deadline_at(self, now: datetime) -> datetime:
        """The end of its window, where it is accepted now."""
        return now + timedelta(seconds=self.spec.completion_window_s)

    def pause_at(self, now: datetime) -> tuple[datetime | None, datetime | None]:
        """The times `paused_at` and `window_turns_at`, where it is accepted now: outside its window it is
        paused until that opens.
        """
        hours = self.spec.hours
        if hours is None:
            return None, None
        return None if hours.is_open(now) else now, hours.turns_at(now)

    def accepted(self, now: datetime) -> Job:
        paused_at, window_turns_at = self.pause_at(now)
        return Job(
            id=self.id,
            tenant_id=self.tenant_id,
            kind=self.kind,
            face=self.face,
            state=JobState.QUEUED,
            priority=self.priority,
            model=self.model,
            spec=self.spec,
            counts=Counts(None, 0, 0),
            usage=Usage(),
            created_at=now,
            deadline_at=self.deadline_at(now),
            paused_at=paused_at,
            window_turns_at=window_turns_at,
            retry_of=self.retry_of,
            tokens_queued=self.tokens_queued,
            traceparent=self.traceparent,
        )
