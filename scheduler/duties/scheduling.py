"""Starts the runs of schedules: records the instants that have come, and looks at the runs that wait."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.errors import DatabaseUnavailable
from nightshift.lifecycle import transitions
from nightshift.lifecycle.schedules.starting import Looked, give_up, look, record
from nightshift.lifecycle.submission import Submitter
from nightshift.schedules.runs import OUTCOMES, Run, RunState
from nightshift.store import PendingWork, Store
from scheduler.runtime.duty import MayContinue, PassResult, earliest, interruptible

log = logging.getLogger(__name__)

# A pass repeats what a power failure undid: a run and its job are one transaction, and each change that
# follows from a job is committed after it.
DURABLE: Final = False

Observe = Callable[[str, float | None], None]  # a run's outcome, and its delay in seconds if it has begun


@dataclass(frozen=True)
class SchedulingConfig:
    interval_s: float = 0.2  # between passes: added to a run's delay
    per_pass_max: int = 50  # schedules and runs, each in a transaction; the next pass follows at once


@dataclass(frozen=True, kw_only=True)
class Scheduled(PassResult):
    submitted: int = 0
    skipped: int = 0
    missed: int = 0
    refused: int = 0
    cancelled: int = 0  # jobs that the next run replaces


class Scheduling:
    name = "scheduling"

    def __init__(
        self,
        store: Store,
        submitter: Submitter,
        config: SchedulingConfig = SchedulingConfig(),
        *,
        observe: Observe = lambda outcome, delay_s: None,
        may_continue: MayContinue = lambda: True,
    ) -> None:
        self._store = store
        self._submitter = submitter
        self._config = config
        self._observe = observe
        self._may_continue = may_continue
        self.interval_s = config.interval_s

    def due_at(self, work: PendingWork) -> datetime | None:
        return earliest(work.next_instant_at, work.next_run_check_at)

    def run_once(self, now: datetime) -> Scheduled:
        """A pass. Raises what kept a schedule's runs from being recorded, after all others."""
        limit = self._config.per_pass_max
        with self._store.snapshot() as tx:
            due = tx.schedules.due(now, limit)
        counts: Counter[RunState] = Counter()
        failure: Exception | None = None
        for schedule in interruptible(due, self._may_continue):
            try:
                counts.update(self._record(schedule.id, now))
            except DatabaseUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - it would hold up every schedule after it
                failure = error
        with self._store.snapshot() as tx:
            runs = tx.schedules.to_check(now, limit)
        cancelled = 0
        for run in interruptible(runs, self._may_continue):
            looked = self._look(run)
            if looked is not None:
                counts[looked.state] += 1
                cancelled += self._cancel(run, looked)
        if failure is not None:
            raise failure
        has_more = len(due) >= limit or len(runs) >= limit
        outcomes = {outcome: counts[outcome] for outcome in OUTCOMES}
        return Scheduled(cancelled=cancelled, has_more=has_more, **outcomes)

    def _record(self, schedule_id: str, now: datetime) -> list[RunState]:
        states = self._store.run(lambda tx: record(tx, schedule_id, now), durable=DURABLE)
        for state in states:
            if state is RunState.MISSED:
                self._observe(state, None)
        return states

    def _look(self, run: Run) -> Looked | None:
        try:
            looked = self._store.run(lambda tx: look(tx, run, self._submitter, tx.now()), durable=DURABLE)
        except DatabaseUnavailable:
            raise
        except Exception:  # it would hold up every run after it
            log.exception("a run could not be started", extra={"action": "run_failed", "run": run.id})
            looked = self._store.run(lambda tx: give_up(tx, run, tx.now()))
        if looked is not None and looked.state is not RunState.WAITING:
            self._observe(looked.state, looked.delay_s)
        return looked

    def _cancel(self, run: Run, looked: Looked) -> bool:
        """Cancels the job that the run replaces. False: it is finalizing, or has ended."""
        if looked.job_to_cancel is None:
            return False
        with self._store.transaction() as tx:
            job = tx.jobs.get(run.tenant_id, looked.job_to_cancel)
            return job is not None and transitions.cancel(tx, job, tx.now())
