"""Jobs: what they are and the states they pass through. Pure.

A **job** is what a client submits: one request (online), or an input of many rows (bulk). Its rows are run in
**shards**, the unit of leasing; an online job is a job with one shard of one row.

    job     queued ──► running ──► finalizing ──► succeeded
              │           │            ├────────► failed
              └───────────┴────────────┼────────► cancelled
              (online jobs skip        └────────► expired
               finalizing)
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from nightshift.jobs.priorities import PriorityClass

JsonObject = dict[str, Any]


class JobState(StrEnum):
    QUEUED = "queued"  # accepted; no row has been started (input not yet planned, or waiting)
    RUNNING = "running"  # a shard has been claimed
    FINALIZING = "finalizing"  # no row will run any more; output is being put together
    SUCCEEDED = "succeeded"  # every row has its result (some of them perhaps errors)
    FAILED = "failed"  # input unreadable, system failure, or too many failed rows
    CANCELLED = "cancelled"  # on request; partial output kept
    EXPIRED = "expired"  # the window or max_runtime ended; partial output kept

    @property
    def is_terminal(self) -> bool:
        """A terminal state is never left."""
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
    """The states a job may come from when it enters this one: what the store's WHERE clauses ask for."""
    return tuple(origin for origin, targets in JOB_TRANSITIONS.items() if state in targets)


class StopReason(StrEnum):
    """Why a job was told to start no more rows. Set once; the first reason stays."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"

    @property
    def final_state(self) -> JobState:
        return JobState(self.value)

    @property
    def row_error_code(self) -> str:
        """The code of the error line a row gets that was never run."""
        return f"batch_{self.value}"


class JobKind(StrEnum):
    ONLINE = "online"
    BULK = "bulk"


class Face(StrEnum):
    """The route a job came in by. It decides how the input is checked and how output is laid out."""

    NATIVE = "native"  # /v1/jobs: part files under an output prefix
    OPENAI = "openai"  # /v1/batches: whole-file validation, one output file and one error file


@dataclass(frozen=True)
class Webhook:
    """Where to send a job's events, and which. The signing secret is kept apart, encrypted."""

    url: str
    events: tuple[str, ...]  # event types; empty means every terminal one


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What was asked for, as accepted. Never changes after creation."""

    endpoint: str  # its route; `nightshift/endpoints` has what it decides
    completion_window_s: int
    input: str | None = None  # `s3://…`, `file:///…` or `file-…`; None for an online job
    output: str | None = None  # prefix for part files; None for an online or OpenAI job
    template: JsonObject | None = None  # request body with {{column}} placeholders; None: rows are requests
    id_column: str | None = None  # the column that becomes custom_id; None: the row's number
    format: str = "jsonl"  # of the part files: jsonl or parquet
    max_runtime_s: int | None = None  # from the first claim
    retry_on_interrupt: bool = True
    capacity: str = "any"  # spot, on_demand or any
    max_error_rate: float | None = None  # failed rows / rows; above it the job stops as failed
    output_expires_after_s: int | None = None  # OpenAI output files, from their creation
    webhook: Webhook | None = None
    metadata: dict[str, str] | None = None
    name: str | None = None  # with run_date: the key of a nightly run
    run_date: str | None = None
    service_tier: str | None = None  # echoed on OpenAI answers

    def to_json(self) -> JsonObject:
        """For the database. `from_json` reads it back."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: JsonObject) -> "JobSpec":
        known = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        webhook = known.pop("webhook", None)
        spec = cls(**known)
        if webhook is None:
            return spec
        return replace(spec, webhook=Webhook(url=webhook["url"], events=tuple(webhook["events"])))


@dataclass(frozen=True)
class Counts:
    """Rows of a job. `total` is None until it is known; every terminal job knows it."""

    total: int | None = None
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Usage:
    """Tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt tokens: read from the prefix cache

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True)
class InputError:
    """One thing wrong with a job's input. `line` is 1-based; None when it is about the whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as it is now. Times are the database's, aware, UTC; None means it has not happened."""

    id: str
    tenant_id: str
    kind: JobKind
    face: Face
    state: JobState
    priority: PriorityClass
    model: str | None  # None until the input has been read, when the rows name it
    spec: JobSpec
    counts: Counts
    usage: Usage
    created_at: datetime
    deadline_at: datetime  # created_at + completion window
    planned_at: datetime | None = None  # input read and cut into shards; rows may run
    started_at: datetime | None = None  # first claim
    finalizing_at: datetime | None = None
    finished_at: datetime | None = None  # the terminal state was entered
    stop_reason: StopReason | None = None  # no further row is started
    stop_requested_at: datetime | None = None
    rows_estimated: int | None = None  # from a sample of the input; for progress bars only
    errors: tuple[InputError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    tokens_redone: int = 0  # generated, lost with a worker, and generated again


@dataclass(frozen=True)
class Answer:
    """What a model answered to an online request or a row: an HTTP-like status, and the body that goes with
    it.
    """

    status_code: int
    body: JsonObject
    usage: Usage

    @property
    def succeeded(self) -> bool:
        return self.status_code < 400


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job as its creator describes it. The rest of the columns start out empty."""

    id: str
    tenant_id: str
    kind: JobKind
    face: Face
    priority: PriorityClass
    model: str | None
    spec: JobSpec
    fingerprint: str
    webhook_secret: bytes | None = None  # encrypted

    def accepted(self, now: datetime) -> Job:
        """The job that this becomes."""
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
            deadline_at=now + timedelta(seconds=self.spec.completion_window_s),
        )
