"""The shapes of answers that handlers build as dictionaries, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.bodies import EpochTime, ListEnvelope, Record
from api.bodies.figures import WorkerFiguresObject
from api.bodies.files import FileObject
from api.bodies.jobs import ShownOptions
from nightshift.fleet.models import ModelKind
from nightshift.fleet.workers import NoticeKind, WorkerState
from nightshift.jobs import JobKind, JobState, Outlook, StopReason
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.priorities import PriorityClass

Json = dict[str, Any]


class InputErrorObject(BaseModel):
    code: str
    message: str
    line: int | None
    param: str | None


class JobLinks(BaseModel):
    self: str
    events: str
    results: str
    cancel: str


class AcceptedJob(BaseModel):
    """The answer to a create."""

    id: str
    object: Literal["job"]
    status: JobState
    queue_position: int | None
    links: JobLinks


class JobCounts(BaseModel):
    total: int | None
    succeeded: int
    failed: int


class CachedTokens(BaseModel):
    cached_tokens: int


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class JobUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: ReasoningTokens | None = None  # where there are such tokens
    prompt_tokens_details: CachedTokens


class JobWebhook(BaseModel):
    url: str
    events: list[str]


class WorkerSeconds(BaseModel):
    """Time of workers, by their capacity."""

    spot: float
    on_demand: float


class JobProblemObject(BaseModel):
    """The reason why a job does not go on at present. What failed is tried again; a permanent problem stops
    the job, which then fails with it.

    `since`: when it was first seen. `last_tried_at`, `next_attempt_at`: null where they are not known.
    """

    code: str
    message: str
    param: str | None
    is_permanent: bool
    since: int | None
    last_tried_at: int | None
    next_attempt_at: int | None


class ListedJob(AcceptedJob, ShownOptions):
    """A job in a list: without its template."""

    kind: JobKind
    purpose: Literal["estimate"] | None  # a sample, for an estimate; null: the job itself is wanted
    model: str | None
    priority: PriorityClass
    stop_reason: StopReason | None
    retry_of: str | None
    counts: JobCounts
    rows_estimated: int | None
    usage: JobUsage
    tokens_redone: int
    rows_reused: int
    rows_unlisted: int
    worker_seconds: WorkerSeconds
    eta_at: int | None
    error: InputErrorObject | None
    errors: list[InputErrorObject]
    problem: JobProblemObject | None
    output_file_id: str | None
    error_file_id: str | None
    endpoint: str
    input: str | list[str] | None
    output: str | None
    id_column: str | None
    format: str
    completion_window: str
    window: str | None
    outlook: Outlook | None
    max_runtime: str | None
    retry_on_interrupt: bool
    capacity: str
    webhook: JobWebhook | None
    metadata: dict[str, str] | None
    name: str | None
    date: str | None
    reused_job: str | None
    created_at: int
    expires_at: int
    planned_at: int | None
    started_at: int | None
    paused_at: int | None
    resumes_at: int | None
    stop_requested_at: int | None
    finalizing_at: int | None
    finished_at: int | None
    results_deleted_at: int | None


class OutputProblemObject(BaseModel):
    """The reason why a job's output cannot be written at present.

    A job fails with a permanent problem. `next_attempt_at` is null while an attempt is
    under way, and of the manifest, which is tried again after at most two
    minutes.
    """

    code: str
    message: str
    param: str | None
    is_permanent: bool
    next_attempt_at: int | None


class DescribedJob(ListedJob):
    """A job by itself: with its template and the ids of its newest retries."""

    template: Json | None
    cost: float | None
    output_problem: OutputProblemObject | None
    retries: list[str]


class JobPage(ListEnvelope):
    data: list[ListedJob]


class RowResponse(BaseModel):
    status_code: int
    request_id: str | None
    body: Json


class RowError(BaseModel):
    code: str
    message: str


class RowObject(BaseModel):
    """A row with a result, or with the reason why it has none. `columns`: of jobs that keep some."""

    id: str
    custom_id: str | None
    columns: Json | None = None
    response: RowResponse | None
    error: RowError | None
    outcome: Literal["succeeded", "errored", "expired", "cancelled"]


class RowPage(ListEnvelope):
    data: list[RowObject]


class BatchErrors(BaseModel):
    object: Literal["list"]
    data: list[InputErrorObject]


class BatchCounts(BaseModel):
    total: int
    completed: int
    failed: int


class BatchUsage(BaseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchExtras(BaseModel):
    job_id: str
    priority: PriorityClass
    eta_at: int | None
    queue_position: int | None
    partial_output_file_id: str | None
    rows_unlisted: int
    problem: JobProblemObject | None


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str | None
    completion_window: str
    status: Literal[
        "validating",
        "in_progress",
        "finalizing",
        "completed",
        "failed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    nightshift: BatchExtras


class BatchPage(ListEnvelope):
    data: list[BatchObject]


class FilePage(ListEnvelope):
    data: list[FileObject]


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class DeadLetterObject(Record):
    id: str
    object: Literal["dead_letter"]
    status: DeadLetterState = Field(validation_alias="state")
    job_id: str
    custom_id: str | None
    cause: str
    crashes: int
    worker_id: str | None
    died_at: EpochTime
    decided_at: EpochTime | None
    replay_job_id: str | None


class DeadLetterPage(ListEnvelope):
    data: list[DeadLetterObject]


class ModelObject(BaseModel):
    """`parent`: the model that an adapter changes; `root`: that, or the model itself; `max_model_len`: vLLM's
    name of `context_length`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    kind: ModelKind
    context_length: int | None
    max_model_len: int | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelObject]


class MachineNoticeObject(Record):
    """`ends_at`: when the machine goes, by the cloud's clock; null: it does not say."""

    kind: NoticeKind
    received_at: EpochTime
    ends_at: EpochTime | None


class WorkerObject(BaseModel):
    """`host` and `pid` are shown to administrators alone."""

    id: str
    object: Literal["worker"]
    status: WorkerState
    models: list[str]
    warm_models: list[str]
    capacity: str
    drain_requested_at: int | None
    notice: MachineNoticeObject | None
    started_at: int
    heartbeat_at: int
    figures: WorkerFiguresObject | None
    host: str = ""
    pid: int = 0


class WorkerPage(ListEnvelope):
    data: list[WorkerObject]


class WebhookSecretObject(BaseModel):
    object: Literal["webhook_secret"]
    secret: str


class HealthObject(BaseModel):
    status: Literal["alive"]
    service: Literal["nightshift"]  # by which a worker knows that an upstream is one


class ReadinessObject(BaseModel):
    """`reasons` say what is wrong with the parts that are not well."""

    status: Literal["ready", "degraded", "unavailable"]
    parts: dict[str, Literal["ok", "unavailable"]]
    reasons: list[str]
