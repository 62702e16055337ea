"""The bodies and answers of /v1/schedules."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field

from api.bodies import EpochTime, ListEnvelope, OwnBody, Record, parsed
from api.bodies.jobs import JobCreate, Name, WebhookBody
from nightshift.endpoints.requests import null_means
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.schedules.plans import (
    CATCH_UP_LIMIT,
    CATCH_UP_LIMIT_MAX,
    CatchUp,
    Overlap,
    Plan,
    about_job,
)
from nightshift.schedules.runs import RunState

OF_THE_PLAN: Final = {  # fields of POST /v1/jobs that a plan's job does not have
    "name": "it is the plan's name",
    "date": "it is the day of the run",
    "window": "give it beside 'job'",
    "webhook": "give it beside 'job'",
    "body": "a plan's job has an 'input'",
}
DESCRIPTION_CHARS_MAX: Final = 512

# A number has no unit, which the check of a jitter says.
Jitter = Annotated[str | None, BeforeValidator(lambda given: str(given) if type(given) is int else given)]
CatchUpLimit = Annotated[int, Field(ge=1, le=CATCH_UP_LIMIT_MAX, strict=True), null_means(CATCH_UP_LIMIT)]


class SchedulePut(OwnBody):
    """PUT /v1/schedules/{name}: a plan."""

    name: Name | None = None
    cron: str | None = None
    time_zone: Annotated[str, null_means("UTC")] = "UTC"
    window: str | None = None
    job: JsonObject
    overlap: Annotated[Overlap, null_means(Overlap.SKIP)] = Overlap.SKIP
    catch_up: Annotated[CatchUp, null_means(CatchUp.LAST)] = CatchUp.LAST
    catch_up_limit: CatchUpLimit = CATCH_UP_LIMIT
    jitter: Jitter = None
    webhook: WebhookBody | None = None
    after: Name | None = None
    overwrite: Annotated[bool, null_means(False)] = False
    description: Annotated[str, Field(max_length=DESCRIPTION_CHARS_MAX), null_means("")] = ""

    def plan(self, name: str) -> Plan:
        """The plan of this name. Raises InvalidRequest."""
        if self.name is not None and self.name != name:
            raise InvalidRequest(
                f"Invalid 'name': the plan is called {self.name!r}, the path says {name!r}.", param="name"
            )
        return Plan(name=name, **self.model_dump(exclude={"name", "job", "webhook"}))

    def job_fields(self) -> JobCreate:
        """The job as `POST /v1/jobs` takes it. Raises InvalidRequest."""
        for field, advice in OF_THE_PLAN.items():
            if field in self.job:
                where = f"job.{field}"
                raise InvalidRequest(f"Invalid '{where}': {advice}.", param=where, code="unknown_parameter")
        if self.window is not None and any(char.isalpha() for char in self.window):
            advice = "give it as 01:00-06:00; the plan's 'time_zone' is its zone"
            raise InvalidRequest(f"Invalid 'window': {advice}.", param="window")
        hours = {} if self.window is None else {"window": f"{self.window} {self.time_zone}"}
        with about_job():
            return parsed(JobCreate, self.job | hours)


class ScheduleProblemObject(BaseModel):
    code: str
    message: str


class ScheduleRun(Record):
    """A run of a schedule. `due_at` is its instant, `local_date` that instant's day in the plan's zone."""

    id: str
    object: Literal["schedule.run"] = "schedule.run"
    schedule: str
    version: int
    due_at: EpochTime
    local_date: str
    state: RunState
    job_id: str | None
    started_at: EpochTime | None
    ended_at: EpochTime | None
    reason: str | None


class ScheduleObject(BaseModel):
    """A schedule and its plan. `next_runs` are at most three; a plan with `after` has none of its own."""

    id: str
    object: Literal["schedule"] = "schedule"
    name: str
    cron: str | None
    time_zone: str
    window: str | None
    job: dict[str, Any]
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    jitter: str | None
    webhook: dict[str, Any] | None
    after: str | None
    overwrite: bool
    description: str
    version: int
    created_at: int
    updated_at: int
    paused_at: int | None
    next_runs: list[int]
    last_run: ScheduleRun | None
    problem: ScheduleProblemObject | None


class AppliedSchedule(ScheduleObject):
    change: Literal["created", "updated", "unchanged"]


class ScheduleVersionObject(Record):
    """A plan that a schedule has or had. `plan` has the fields of PUT /v1/schedules/{name}."""

    id: str
    object: Literal["schedule.version"] = "schedule.version"
    schedule: str
    version: int
    created_at: EpochTime
    key_id: str
    plan: dict[str, Any]


class SchedulePage(ListEnvelope):
    data: list[ScheduleObject]


class ScheduleRunPage(ListEnvelope):
    data: list[ScheduleRun]


class ScheduleVersionPage(ListEnvelope):
    data: list[ScheduleVersionObject]


class DeletedSchedule(BaseModel):
    id: str
    object: Literal["schedule.deleted"] = "schedule.deleted"
    name: str
    deleted: Literal[True] = True
