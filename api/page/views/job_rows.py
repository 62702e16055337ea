"""A job as lists and its own view show it: how far it is, and whether it will be in time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property

from api.responses.times import eta_at
from nightshift.fleet.costs import NO_PRICES, Prices
from nightshift.jobs import Job, JobKind, JobState


class Tone(StrEnum):
    """The look of a state; its word stands beside it."""

    WAITING = "waiting"
    ACTIVE = "active"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    OVER = "over"


_TONES = {
    "queued": Tone.WAITING,
    "running": Tone.ACTIVE,
    "finalizing": Tone.ACTIVE,
    "paused": Tone.WARNING,
    "stopping": Tone.WARNING,
    "succeeded": Tone.GOOD,
    "failed": Tone.BAD,
    "cancelled": Tone.OVER,
    "expired": Tone.WARNING,
}


@dataclass(frozen=True)
class JobRow:
    job: Job
    now: datetime
    prices: Prices = NO_PRICES

    @property
    def state(self) -> str:
        """The job's, or what an owner has asked of it."""
        if self.job.state.is_terminal:
            return self.job.state.value
        if self.job.stop_reason is not None:
            return "stopping"
        return "paused" if self.job.paused_at is not None else self.job.state.value

    @property
    def tone(self) -> Tone:
        return _TONES[self.state]

    @property
    def label(self) -> str:
        """The name by which a person knows the job."""
        spec = self.job.spec
        if spec.estimate is not None:
            return "Sample for an estimate"
        return f"{spec.name} · {spec.run_date}" if spec.name and spec.run_date else spec.name or self.job.id

    @property
    def is_bulk(self) -> bool:
        return self.job.kind is JobKind.BULK

    @property
    def done(self) -> int:
        return self.job.counts.succeeded + self.job.counts.failed

    @property
    def total(self) -> int | None:
        """Rows as counted or, once all of the input is cut, as estimated; never less than are done."""
        expected = self.job.rows_expected
        return None if expected is None else max(expected, self.done)

    @property
    def is_estimate(self) -> bool:
        return self.job.counts.total is None and self.total is not None

    @cached_property
    def eta(self) -> datetime | None:
        return eta_at(self.job, self.now)

    @property
    def spare(self) -> timedelta | None:
        """Time between the job's end at its present pace and its deadline; negative: it will be late."""
        return None if self.eta is None else self.job.deadline_at - self.eta

    @property
    def is_late(self) -> bool:
        return self.spare is not None and self.spare < timedelta()

    @property
    def shows_deadline(self) -> bool:
        """Whether the deadline matters: the job has not ended, or ended after it."""
        ended_at = self.job.finished_at
        return ended_at is None or ended_at >= self.job.deadline_at

    @property
    def cost(self) -> float | None:
        """Cost so far; None: a price that it takes is not known, or it is no bulk job."""
        return self.prices.cost(self.job.worker_time) if self.is_bulk else None

    @property
    def took(self) -> timedelta | None:
        """Time from the first claim to the end, or until now."""
        began = self.job.started_at
        return None if began is None else (self.job.finished_at or self.now) - began

    @property
    def rows_per_s(self) -> float | None:
        """The pace from the first claim; None: rows that never ran are counted, or there is none yet."""
        took = self.took
        if self.job.state.is_terminal and self.job.state is not JobState.SUCCEEDED:
            return None
        if took is None or not self.is_bulk or not self.done or took <= timedelta():
            return None
        return self.done / took.total_seconds()
