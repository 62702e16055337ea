"""A plan, as its owner applied it, and the schedule that follows it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from nightshift.errors import InvalidRequest, about
from nightshift.schedules.cron import Cron, cron_of
from nightshift.schedules.zones import zone_named

CATCH_UP_LIMIT: Final = 7
CATCH_UP_LIMIT_MAX: Final = 100
NEXT_RUNS: Final = 3  # shown
JITTER_MAX_S: Final = 86_400
OF_PLAN: Final = ("window", "webhook")  # fields of a job that stand beside it in a plan

_JITTER: Final = re.compile(r"([1-9][0-9]{0,5})([smh])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600}


class Overlap(StrEnum):
    """The choice where a run of the plan is under way when the next one is due."""

    SKIP = "skip"  # the next one is not run
    QUEUE = "queue"  # it waits for the end
    REPLACE = "replace"  # the one under way is cancelled


class CatchUp(StrEnum):
    """The runs made up for that were missed while no scheduler ran."""

    NONE = "none"
    LAST = "last"  # the last one missed
    ALL = "all"  # the last ones, `catch_up_limit` at most


@dataclass(frozen=True, kw_only=True)
class Plan:
    name: str
    cron: str | None = None  # None: it has `after`
    time_zone: str = "UTC"
    window: str | None = None  # hours in which its jobs run, by the clock of its zone
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LAST
    catch_up_limit: int = CATCH_UP_LIMIT
    jitter: str | None = None  # at most so much later than the instant: 5m
    after: str | None = None  # the plan whose run of the same instant must have succeeded
    overwrite: bool = False  # whether the output may be the same every time
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Plan":
        known = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        overlap, catch_up = Overlap(known["overlap"]), CatchUp(known["catch_up"])
        return cls(**known | {"overlap": overlap, "catch_up": catch_up})

    @property
    def jitter_s(self) -> int:
        return 0 if self.jitter is None else jitter_s(self.jitter)

    def cron_at(self, now: datetime) -> Cron | None:
        """The times of its runs; None: it follows another plan. Raises InvalidRequest."""
        return None if self.cron is None else cron_of(self.cron, zone_named(self.time_zone), now)


def check_plan(plan: Plan, now: datetime) -> None:
    """Raises InvalidRequest, naming the field."""
    if (plan.cron is None) == (plan.after is None):
        raise InvalidRequest("Give either 'cron', or 'after' and another plan's name.", param="cron")
    with about("time_zone"):
        zone = zone_named(plan.time_zone)
    if plan.cron is not None:
        with about("cron"):
            cron_of(plan.cron, zone, now)
    if plan.jitter is not None:
        jitter_s(plan.jitter)
    if plan.catch_up is CatchUp.ALL and plan.overlap is not Overlap.QUEUE:
        raise InvalidRequest(
            f"Invalid 'overlap': with \"{plan.overlap}\" only one of the runs that 'catch_up' makes up for "
            "would stay. Give 'overlap' \"queue\" beside 'catch_up' \"all\".",
            param="overlap",
        )


def check_no_circle(plan: Plan, others: Mapping[str, str]) -> None:
    """Raises InvalidRequest if the plan would follow itself. `others`: what other plans follow, by name."""
    followed, names = plan.after, [plan.name]
    while followed is not None and followed != plan.name:
        names.append(followed)
        followed = others.get(followed)
    if followed is not None:
        path = " after ".join([*names, followed])
        message = f"Invalid 'after': it leads in a circle, {path}, so none would ever run."
        raise InvalidRequest(message, param="after", code="circle")


def jitter_s(text: str) -> int:
    """The seconds in `30s`, `5m` or `1h`. Raises InvalidRequest."""
    match = _JITTER.fullmatch(text)
    seconds = 0 if match is None else int(match[1]) * _UNIT_S[match[2]]
    if not 0 < seconds <= JITTER_MAX_S:
        raise InvalidRequest(
            f"Invalid 'jitter': {text!r} is not a duration such as 30s, 5m or 1h, up to 24h.", param="jitter"
        )
    return seconds


@contextmanager
def about_job() -> Iterator[None]:
    """Has an InvalidRequest about a job name the field of the plan that has the job's."""
    try:
        yield
    except InvalidRequest as error:
        param = error.param or ""
        is_the_plans = param.split(".")[0] in OF_PLAN
        where = param if is_the_plans else f"job.{param}" if param else "job"
        raise type(error)(error.message, param=where, code=error.code) from error


@dataclass(frozen=True)
class ScheduleProblem:
    """The reason why the last run was not started, and what to do."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ScheduleVersion:
    """A plan of a schedule, never changed."""

    version: int
    created_at: datetime
    key_id: str  # the key that applied it
    fingerprint: str  # digest of what was sent
    plan: Plan
    job: dict[str, Any]  # as it was sent
    webhook: dict[str, Any] | None  # likewise, without its secret
    spec: dict[str, Any]  # the checked job, with its variables
    priority: str
    webhook_secret: bytes | None = None  # encrypted

    def shown(self) -> dict[str, Any]:
        """The plan's fields as its owner reads them."""
        return self.plan.to_json() | {"job": self.job, "webhook": self.webhook}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule as it is now. Times are the database's, aware, UTC."""

    id: str
    tenant_id: str
    name: str
    current: ScheduleVersion  # the newest: of it, runs are made
    key_id: str  # the key that last applied its plan: runs are made on its behalf
    created_at: datetime
    paused_at: datetime | None = None  # since when no run of it is recorded
    next_at: datetime | None = None  # the first instant not recorded; None: paused, or it has `after`
    problem: ScheduleProblem | None = None

    @property
    def plan(self) -> Plan:
        return self.current.plan

    def next_runs(self, now: datetime) -> list[datetime]:
        """The next instants, the first of which is past where it is late; none while it is paused, or where
        it follows another plan.
        """
        cron = self.plan.cron_at(now)
        if self.next_at is None or cron is None:
            return []
        return [self.next_at, *islice(cron.after(max(self.next_at, now)), NEXT_RUNS - 1)]
