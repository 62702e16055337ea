"""Records what owners of running jobs are told: changes of a job's problem, and `job.progress` events."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.lifecycle.problems import ProblemRecorder
from nightshift.lifecycle.webhooks.progress import is_news, owe_progress
from nightshift.outbound.webhook_events import PROGRESS
from nightshift.store import PendingWork, Store
from scheduler.runtime.duty import PassResult


@dataclass(frozen=True, kw_only=True)
class Recorded(PassResult):
    problems: int = 0  # changes: come, gone, or another one


class Problems:
    name = "problems"
    interval_s = 1.0  # between passes while there are jobs: what an owner waits, beside the fault itself

    def __init__(self, store: Store) -> None:
        self._recorder = ProblemRecorder(store)

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.has_job else None

    def run_once(self, now: datetime) -> Recorded:
        return Recorded(problems=self._recorder.run_once(now))


JOBS_PER_QUERY_MAX: Final = 500


@dataclass(frozen=True, kw_only=True)
class Told(PassResult):
    events: int = 0


class Progress:
    name = "progress"

    def __init__(self, store: Store, interval_s: float) -> None:
        self._store = store
        self.interval_s = interval_s

    def run_once(self, now: datetime) -> Told:
        events = 0
        for job_id in list(self._with_news()):
            with self._store.transaction() as tx:
                events += owe_progress(tx, job_id, now)
        return Told(events=events)

    def _with_news(self) -> Iterator[str]:
        after = ""
        while True:
            with self._store.snapshot() as tx:
                tenants = tx.webhook_endpoints.tenants_naming(PROGRESS)
                ids = tx.jobs.telling_progress(PROGRESS, tenants, JOBS_PER_QUERY_MAX, after)
                with_news = [id for id in ids if is_news(tx, tx.jobs.fetch(id))]
            yield from with_news
            if len(ids) < JOBS_PER_QUERY_MAX:
                return
            after = ids[-1]
