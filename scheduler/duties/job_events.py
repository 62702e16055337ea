"""Tell owners what keeps their jobs from going on: record each change of a job's problem once.

What a fault is, and how long it lasts, is known where it is met (`nightshift/lifecycle/problems.py`). A pass
costs a look into indexes for every unfinished bulk job.
"""

from dataclasses import dataclass
from datetime import datetime

from nightshift.lifecycle.problems import ProblemRecorder
from nightshift.store import PendingWork, Store
from scheduler.runtime.duty import PassResult


@dataclass(frozen=True, kw_only=True)
class Recorded(PassResult):
    problems: int = 0  # that have come, gone, or become others


class Problems:
    name = "problems"
    interval_s = 1.0  # between passes while there are jobs: what an owner waits, beside the fault itself

    def __init__(self, store: Store) -> None:
        self._recorder = ProblemRecorder(store)

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.has_job else None

    def run_once(self, now: datetime) -> Recorded:
        return Recorded(problems=self._recorder.run_once(now))
