"""Predicted ends of bulk jobs: whether they are in time, and from when they are urgent. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift.jobs import JobKind, Outlook
from nightshift.jobs.capacity.backlog import WaitingJob
from nightshift.jobs.capacity.demand import COLD_START_S
from nightshift.jobs.priorities import PriorityClass, PriorityConfig, urgent_from

FAR_S: Final = 10 * 365 * 86_400.0  # later ends count as this one: no date is beyond the year 9999
CLEAR_SHARE: Final = 0.1  # of the time left, by which a late job must be early again for its owner to be told
MOVED_LEAST: Final = timedelta(minutes=1)  # a change of `urgent_at` that is recorded …
MOVED_SHARE: Final = 0.1  # … or this share of the time from it to the end, if that is more


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    id: str
    model: str
    priority: PriorityClass
    rows_left: int
    deadline_at: datetime
    closes_at: datetime | None = None  # end of its window
    urgent_at: datetime | None = None  # as recorded
    outlook: Outlook | None = None  # as its owner was told

    @property
    def due_at(self) -> datetime:
        return self.deadline_at if self.closes_at is None else min(self.closes_at, self.deadline_at)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    job: RunningJob
    ends_at: datetime
    urgent_at: datetime | None
    """The time from which it counts as one class better; None: near its deadline, as without a forecast."""
    outlook: Outlook | None

    @property
    def is_to_be_told(self) -> bool:
        return self.outlook is not self.job.outlook

    @property
    def has_moved(self) -> bool:
        """Whether `urgent_at` is to be recorded."""
        before, after = self.job.urgent_at, self.urgent_at
        if before is None or after is None:
            return before != after
        return abs(after - before) > max(MOVED_LEAST, MOVED_SHARE * (self.job.due_at - before))


def forecasts(
    jobs: Iterable[RunningJob],
    paces: Mapping[str, float],
    workers: Mapping[str, int],
    now: datetime,
    config: PriorityConfig = PriorityConfig(),
) -> Iterator[Forecast]:
    """Forecasts for the jobs of models with a known pace: a model's jobs are run in the order of class and
    end, by all workers that have it. Where none is ready, one is taken to start.

    `paces`: rows that a busy worker runs in a second; `workers`: how many are ready; both by model.
    """
    by_model: defaultdict[str, list[RunningJob]] = defaultdict(list)
    for job in jobs:
        by_model[job.model].append(job)
    for model, of_model in by_model.items():
        ready = workers.get(model, 0)
        pace = paces.get(model, 0.0) * max(1, ready)
        if pace <= 0:
            continue
        ends_in_s = 0.0 if ready else COLD_START_S
        for job in sorted(of_model, key=lambda one: (one.priority.rank, one.due_at)):
            work_left_s = min(job.rows_left / pace, FAR_S)
            ends_in_s = min(ends_in_s + work_left_s, FAR_S)
            ends_at = now + timedelta(seconds=ends_in_s)
            urgent_at = urgent_from(job.due_at, work_left_s, config)
            is_early = urgent_at < job.deadline_at - config.deadline_ramp
            yield Forecast(
                job=job,
                ends_at=ends_at,
                urgent_at=urgent_at if is_early else None,
                outlook=_outlook(job, ends_at, now),
            )


def slack_s(
    waiting: Iterable[WaitingJob], paces: Mapping[str, float], now: datetime, workers: Mapping[str, int]
) -> dict[str, float]:
    """The least time from a bulk job's predicted end to its deadline, by class; below 0: it will be late.
    Paused jobs have none.
    """
    jobs = (
        RunningJob(
            id="",
            model=job.model,
            priority=job.priority,
            rows_left=job.rows_left,
            deadline_at=job.deadline_at,
        )
        for job in waiting
        if job.kind is JobKind.BULK and not job.is_paused and job.queued + job.leased
    )
    least: dict[str, float] = {}
    for one in forecasts(jobs, paces, workers, now):
        slack, name = (one.job.due_at - one.ends_at).total_seconds(), one.job.priority.value
        least[name] = min(slack, least.get(name, slack))
    return least


def _outlook(job: RunningJob, ends_at: datetime, now: datetime) -> Outlook | None:
    """The outlook to tell: each is told once."""
    if job.outlook is None and ends_at > job.due_at:
        return Outlook.AT_RISK
    if job.outlook is Outlook.AT_RISK and ends_at < job.due_at - CLEAR_SHARE * (job.due_at - now):
        return Outlook.ON_TRACK
    return job.outlook
