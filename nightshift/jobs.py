"""Jobs and shards: what they are, the states they pass through, and nothing else. Pure.

A **job** is what somebody submits: one request (online), or an input of many rows (bulk). Its rows are run in
**shards**, the unit of leasing; an online job is a job with one shard of one row.

    job     queued ──► running ──► finalizing ──► succeeded
              │           │            ├────────► failed
              └───────────┴────────────┼────────► cancelled
              (online jobs skip        └────────► expired
               finalizing)

    shard   queued ◄──► leased ──► done
              │           ├─────► failed       given up after too many attempts
              └───────────┴─────► stopped      its job was cancelled, expired or failed
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from nightshift.leases import Lease, Term
from nightshift.priorities import PriorityClass

JsonObject = dict[str, Any]

_CARRY_OVER_SHA256: Final = re.compile(r"-c[0-9]{6,}-([0-9a-f]{64})\.jsonl$")


class JobState(StrEnum):
    QUEUED = "queued"  # accepted; no row has been started (input not yet planned, or waiting)
    RUNNING = "running"  # a shard has been claimed
    FINALIZING = "finalizing"  # no row will run any more; output is being put together
    SUCCEEDED = "succeeded"  # every row has its result (some of them perhaps errors)
    FAILED = "failed"  # input unreadable, system failure, or too many failed rows
    CANCELLED = "cancelled"  # somebody asked; partial output kept
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


class ShardState(StrEnum):
    QUEUED = "queued"  # may be claimed
    LEASED = "leased"  # a worker has it, under `term`
    DONE = "done"  # every row of it is in a listed segment
    STOPPED = "stopped"  # its job ended first; rows without a result get an error line
    FAILED = "failed"  # given up; likewise

    @property
    def is_terminal(self) -> bool:
        return not SHARD_TRANSITIONS[self]


SHARD_TRANSITIONS: Final[Mapping[ShardState, frozenset[ShardState]]] = {
    ShardState.QUEUED: frozenset({ShardState.LEASED, ShardState.STOPPED}),
    ShardState.LEASED: frozenset({ShardState.QUEUED, ShardState.DONE, ShardState.STOPPED, ShardState.FAILED}),
    ShardState.DONE: frozenset(),
    ShardState.STOPPED: frozenset(),
    ShardState.FAILED: frozenset(),
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


class Endpoint(StrEnum):
    """What can be asked of a model. The value is the route."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"

    @classmethod
    def from_name(cls, name: str) -> "Endpoint":
        """A route, or its short name: `chat`, `completions`, `embeddings`.

        Raises ValueError naming the known ones.
        """
        for endpoint in cls:
            route = endpoint.value.removeprefix("/v1/")
            if name.strip("/").removeprefix("v1/") in (route, route.split("/")[0]):
                return endpoint
        raise ValueError(f"unknown endpoint {name!r}: use one of {', '.join(e.value for e in cls)}")

    @property
    def generates_text(self) -> bool:
        return self is not Endpoint.EMBEDDINGS


@dataclass(frozen=True)
class Webhook:
    """Where to send a job's events, and which. The signing secret is kept apart, encrypted."""

    url: str
    events: tuple[str, ...]  # event types; empty means every terminal one


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What was asked for, as accepted. Never changes after creation."""

    endpoint: Endpoint
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
        known["endpoint"] = Endpoint(known["endpoint"])
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


@dataclass(frozen=True, kw_only=True)
class NewShard:
    """A contiguous run of rows, as planned. `start` and `end` are bytes (JSONL) or row groups (Parquet)."""

    shard_no: int
    uri: str  # the object the rows are in
    format: str
    start: int
    end: int | None  # None: to the object's end
    rows_estimated: int | None = None
    first_row: int | None = None  # rows before this shard in the job, when known
    source_etag: str | None = None  # the object as it was when planned; None: it may be any


@dataclass(frozen=True, kw_only=True)
class Shard(NewShard):
    """A shard as it is now."""

    id: str
    job_id: str
    state: ShardState
    term: Term
    attempts: int
    attempts_before: int = 0  # of these, those that had ended when the one that made progress last began
    rows_total: int | None = None  # known once a worker has read to the end of it
    rows_done: int = 0
    carry_over_key: str | None = None  # object with the rows a drained worker left unfinished
    faults: int = 0  # how often in a row something outside it, storage for one, stood in its way

    @property
    def attempts_in_a_row(self) -> int:
        """Attempts since a segment was last listed; the one that did counts."""
        return self.attempts - self.attempts_before


@dataclass(frozen=True, kw_only=True)
class Segment:
    """An immutable object with the results of some rows of a shard. It exists once the database lists it."""

    key: str
    term: Term
    seq: int  # 0, 1, 2 … within the term
    succeeded: int
    failed: int
    usage: Usage
    size_bytes: int
    sha256: str

    @property
    def rows(self) -> int:
        return self.succeeded + self.failed


@dataclass(frozen=True)
class Suspicion:
    """What is known of a shard whose workers died: by row, as far as rows were written down."""

    crashes: int = 0  # of workers that had it; 0: nothing is suspected
    suspects: tuple[int, ...] = ()  # rows that were under way in one of them: each is to run alone
    dead: frozenset[int] = frozenset()  # rows that are run no more; each gets an error line

    @property
    def is_watched(self) -> bool:
        """Whether rows are written down before they are given to the engine."""
        return self.crashes > 0


@dataclass(frozen=True)
class BulkClaim:
    """Everything a worker needs to run a shard it has just leased."""

    lease: Lease
    shard: Shard
    job: Job
    suspicion: Suspicion = Suspicion()


@dataclass(frozen=True)
class OnlineClaim:
    """Everything a worker needs to run an online request it has just leased."""

    lease: Lease
    job: Job
    body: JsonObject
    runs_alone: bool = False  # workers died with it: nothing else may be in its worker meanwhile


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


def segment_key(lease: Lease, shard_no: int, seq: int) -> str:
    """Where a segment lies in the object store: named by what made it, so no two writers ever collide."""
    return f"segments/{lease.tenant_id}/{lease.job_id}/{shard_no:06d}/t{lease.term}-{seq:06d}.jsonl"


def carry_over_key(lease: Lease, shard_no: int, seq: int, sha256: str) -> str:
    """Where a worker leaves the tokens of rows it has not finished: 0, 1, 2 … within the term.

    The key says which bytes (sha256, hex) lie there: the shard's row names the key, so whoever reads the
    object knows from elsewhere what was written.
    """
    folder = f"segments/{lease.tenant_id}/{lease.job_id}/{shard_no:06d}"
    return f"{folder}/t{lease.term}-c{seq:06d}-{sha256}.jsonl"


def carry_over_sha256(key: str) -> str | None:
    """Of the bytes that were written under this key; None: an earlier release's, which did not say."""
    found = _CARRY_OVER_SHA256.search(key)
    return None if found is None else found[1]
