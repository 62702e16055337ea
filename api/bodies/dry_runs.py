"""The answer to `POST /v1/jobs?dry_run=true`."""

from typing import Any, Literal

from pydantic import BaseModel

from nightshift.jobs import JobKind
from nightshift.jobs.priorities import PriorityClass


class DryRunProblem(BaseModel):
    """With a `row` that row would fail, else the job; if not `is_permanent`, it would wait and try again.
    Rows count from 1 in their object.
    """

    code: str
    message: str
    param: str | None = None
    object: str | None = None
    row: int | None = None
    is_permanent: bool = True


class DryRunRequest(BaseModel):
    """A row's request. Of a long one, `body_start` has the beginning of its JSON, and `body` is null."""

    object: str
    row: int
    custom_id: str
    body: dict[str, Any] | None
    body_start: str | None
    body_bytes: int


class DryRunInput(BaseModel):
    """The objects of the input; if not `is_whole`, the first ones. Rows and tokens are estimates."""

    objects: int
    size_bytes: int
    is_whole: bool
    rows_estimated: int | None
    tokens_estimated: int


class DryRunRefusal(BaseModel):
    """The 429 that a submission would get now."""

    code: str | None
    message: str
    retry_after_s: float | None


class DryRunLimit(BaseModel):
    """A quota of what is queued. `limit` null: unlimited. `needed`: by this job, as estimated."""

    limit: int | None
    used: int
    needed: int | None


class DryRun(BaseModel):
    object: Literal["job.dry_run"] = "job.dry_run"
    would_be_accepted: bool
    existing_job_id: str | None  # of the same Idempotency-Key, or name and date: that job is the answer
    refusal: DryRunRefusal | None
    kind: JobKind
    endpoint: str
    model: str | None
    priority: PriorityClass  # the effective one
    expires_at: int  # if submitted now
    limits: dict[str, DryRunLimit]
    input: DryRunInput | None
    rows_checked: int
    rows_with_problems: int  # of these
    requests: list[DryRunRequest]
    problems: list[DryRunProblem]
    is_cut_off: bool  # reading the input took more than a dry run may take
