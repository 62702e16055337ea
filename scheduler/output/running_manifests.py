"""Writes manifests of running jobs, each in its own thread: a place that hangs delays no other job.

Tenants share the threads, as in planning. Assembly writes the last manifest of a job.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from nightshift.bulk.results.destinations import OutputTrouble, destination_of
from nightshift.bulk.results.part_writer import PartDependencies, problem_of
from nightshift.errors import InvalidRequest, StorageError
from nightshift.jobs import Job, JobState, StopReason
from nightshift.jobs.leases import Lead
from nightshift.jobs.part import PartProblem
from nightshift.lifecycle.cutting import record_problem
from nightshift.lifecycle.transitions import request_stop
from nightshift.tenants.quotas import may_take
from scheduler.output.manifests import Manifests
from scheduler.runtime.duty import MayContinue, check
from scheduler.runtime.thread_pools import JobPool, JobPoolConfig, PoolPass

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningManifestsConfig:
    interval_s: float = 5.0  # between two of one job
    pool: JobPoolConfig = field(
        default_factory=lambda: JobPoolConfig(threads_max=8, jobs_looked_at_max=20)
    )  # a place that hangs holds one; a tenant alone has half of them


class ManifestOutcome(StrEnum):
    WRITTEN = "written"
    STOPPED = "stopped"  # the job: its manifest can never be written
    TOO_LATE = "too_late"  # assembly writes the last one


class RunningManifests:
    """One of one job at a time: `begin_output` refuses what began before the job was finalized."""

    def __init__(
        self,
        dependencies: PartDependencies,
        lead: Callable[[], Lead | None],
        config: RunningManifestsConfig,
        may_continue: MayContinue,
    ) -> None:
        self._store = dependencies.store
        self._objects = dependencies.objects
        self._locations = dependencies.locations
        self._manifests = Manifests(dependencies.store, lead)
        self._interval = timedelta(seconds=config.interval_s)
        self._threads_max = config.pool.threads_max
        self._may_continue = may_continue
        self._pool = JobPool("manifest", self._waiting, self._write, config.pool, self._may_start)
        self._written: Mapping[str, int] = {}  # parts of running jobs, as of the last pass
        self._begun_at: dict[str, datetime] = {}  # each job's last manifest
        self._listed: dict[str, int] = {}  # parts in it; written by the pool's threads
        self._due: list[str] = []
        self.wait_until_idle = self._pool.wait_until_idle

    def due_at(self, now: datetime) -> datetime | None:
        """The time when the next is due of the jobs of the last pass: `now` for one that was not begun, and
        while one is being written. For any thread.
        """
        if self._pool.is_busy:
            return now
        begun_at, listed = self._begun_at, self._listed
        waiting = [id for id, written in self._written.items() if written != listed.get(id, 0)]
        return min((begun_at[id] + self._interval if id in begun_at else now for id in waiting), default=None)

    @property
    def blocked_s(self) -> float:
        return self._pool.blocked_s

    def run_once(self, now: datetime, written: Mapping[str, int]) -> PoolPass:
        """Starts the manifests that are due. `written`: number of written parts by running job."""
        self._written = written
        self._begun_at = {id: at for id, at in self._begun_at.items() if id in written}
        for job_id in set(self._listed) - set(written):
            del self._listed[job_id]
        self._due = sorted(id for id in written if self._is_due(id, now))
        pass_ = self._pool.run_once(now)
        self._begun_at |= {job.id: now for job in pass_.started}
        return pass_

    def _is_due(self, job_id: str, now: datetime) -> bool:
        begun_at = self._begun_at.get(job_id)
        is_over = begun_at is None or not begun_at <= now < begun_at + self._interval
        return is_over and self._written[job_id] != self._listed.get(job_id, 0)

    def _waiting(self, limit: int, after: Job | None) -> Sequence[Job]:
        page = [id for id in self._due if after is None or id > after.id][:limit]
        with self._store.snapshot() as tx:
            return [tx.jobs.fetch(job_id) for job_id in page]

    def _may_start(self, job: Job, under_way: Sequence[Job]) -> bool:
        held = sum(other.tenant_id == job.tenant_id for other in under_way)
        return may_take(1, held=held, free=self._threads_max - len(under_way))

    def _write(self, job: Job) -> ManifestOutcome:
        """Raises StorageError, DatabaseUnavailable and Interrupted: it is tried again."""
        check(self._may_continue)
        count = self._written.get(job.id, 0)
        if job.state is not JobState.RUNNING:
            return ManifestOutcome.TOO_LATE
        try:
            self._manifests.write(job, destination_of(job, self._objects, self._locations))
        except (OutputTrouble, InvalidRequest, StorageError) as error:
            problem = problem_of(job, error)
            record_problem(self._store, job.id, problem)
            if not problem.is_permanent:
                raise error.error if isinstance(error, OutputTrouble) else error from error
            return self._stop(job, problem)
        self._listed[job.id] = count
        record_problem(self._store, job.id, None)
        return ManifestOutcome.WRITTEN

    def _stop(self, job: Job, problem: PartProblem) -> ManifestOutcome:
        """Stops a job: no further row is run in vain. Assembly says why."""
        log.warning(
            "no output: %s", problem.error.message, extra={"action": "output_impossible", "job": job.id}
        )
        with self._store.transaction() as tx:
            request_stop(tx, tx.jobs.fetch(job.id), StopReason.FAILED, tx.now())
        return ManifestOutcome.STOPPED
