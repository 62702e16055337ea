"""Pauses jobs at the end of their window until the next night, and says from when jobs are urgent or at risk.

Workers hand back what they run at a window's end by themselves: the statements that renew and claim leases
know the end. What is recorded here is what owners see, and when the job goes on.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from nightshift.fleet.figures import ALIVE_WITHIN
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import Outlook
from nightshift.jobs.capacity.forecasts import Forecast, forecasts
from nightshift.lifecycle.controls import turn_window
from nightshift.lifecycle.webhooks.fan_out import owe_run_event
from nightshift.outbound.webhook_events import AT_RISK, ON_TRACK
from nightshift.store import PendingWork, Store
from scheduler.runtime.duty import PassResult


@dataclass(frozen=True)
class WindowsConfig:
    interval_s: float = 0.5  # between passes: how late an opening is noticed
    jobs_per_pass_max: int = 100  # each in its own transaction; the next pass follows at once
    forecast_interval_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Turned(PassResult):
    jobs: int = 0  # paused until the next night, or gone on


class Windows:
    name = "windows"

    def __init__(self, store: Store, config: WindowsConfig = WindowsConfig()) -> None:
        self._store = store
        self._config = config
        self.interval_s = config.interval_s

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.first_window_turns_at

    def run_once(self, now: datetime) -> Turned:
        limit = self._config.jobs_per_pass_max
        with self._store.snapshot() as tx:
            turning = tx.windows.turning(now, limit)
        turned = 0
        for job in turning:
            with self._store.transaction() as tx:
                tx.jobs.lock(job.id)
                turned += turn_window(tx, job, now)
        return Turned(jobs=turned, has_more=len(turning) >= limit)


@dataclass(frozen=True, kw_only=True)
class Foreseen(PassResult):
    at_risk: int = 0  # jobs whose owners were told so
    on_track: int = 0
    urgencies: int = 0  # times that were recorded
    states: ClassVar[frozenset[str]] = frozenset({"urgencies"})


class Forecasts:
    """Compares what is left of jobs with the time that they have."""

    name = "forecasts"

    def __init__(self, store: Store, config: WindowsConfig = WindowsConfig()) -> None:
        self._store = store
        self._limit = config.jobs_per_pass_max
        self.interval_s = config.forecast_interval_s

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.has_job else None

    def run_once(self, now: datetime) -> Foreseen:
        with self._store.snapshot() as tx:
            figures = tx.figures.latest()
            if figures is None or not figures.rows_per_busy_s:
                return Foreseen()
            jobs = tx.windows.running()
            alive = tx.workers.alive(now - ALIVE_WITHIN)
        ready = [worker for worker in alive if worker.state is WorkerState.READY]
        workers = Counter(model for worker in ready for model in worker.warm)
        foreseen = forecasts(jobs, figures.rows_per_busy_s, workers, now)
        news = [one for one in foreseen if one.has_moved or one.is_to_be_told]
        recorded = [one for one in news[: self._limit] if self._record(one, now)]
        told = Counter(one.outlook for one in recorded if one.is_to_be_told)
        return Foreseen(
            at_risk=told[Outlook.AT_RISK],
            on_track=told[Outlook.ON_TRACK],
            urgencies=sum(one.has_moved for one in recorded),
            has_more=len(news) > self._limit,
        )

    def _record(self, forecast: Forecast, now: datetime) -> bool:
        """Records it, and tells the owner: of two schedulers the first does."""
        with self._store.transaction() as tx:
            tx.jobs.lock(forecast.job.id)
            if not tx.windows.record(forecast):
                return False
            if forecast.is_to_be_told:
                type = AT_RISK if forecast.outlook is Outlook.AT_RISK else ON_TRACK
                job = tx.jobs.fetch(forecast.job.id)
                owe_run_event(tx, job, type, now, due_at=job.due_at, predicted_end_at=forecast.ends_at)
            return True
