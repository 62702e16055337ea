"""Parts of the output of native jobs: cut from ended shards while a job runs, listed in its manifest.

They are written by threads of this process, and by workers.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift.errors import InvalidRequest, StorageError
from nightshift.jobs import Job, JobState, StopReason
from nightshift.jobs.leases import Lead
from nightshift.jobs.part import CutLimits, least_shards
from nightshift.lifecycle.output_parts import CutPass, cut, record_problem
from nightshift.lifecycle.transitions import request_stop
from nightshift.output.part_writer import PartDependencies, PartWriter, problem_of
from nightshift.output.places import OutputTrouble, destination_of
from nightshift.store import Store, Transaction
from scheduler.output.manifests import Manifests
from scheduler.output.publication import Publication
from scheduler.output.writer_threads import WriterThreads
from scheduler.runtime.duty import MayContinue, Result, check

log = logging.getLogger(__name__)

ROWS_MAX: Final = 2**53  # of a part of a job that names no limit


@dataclass(frozen=True)
class OutputPartsConfig:
    interval_s: float = 0.5
    threads_max: int = 2  # each writes one part at a time
    manifest_interval_s: float = 5.0  # between two manifests of one job


@dataclass(frozen=True, kw_only=True)
class Cut(Result):
    parts: int = 0
    expired: int = 0  # leases of parts
    manifests: int = 0
    stopped: int = 0  # jobs whose output cannot be written


class OutputParts:
    name = "output_parts"

    def __init__(
        self,
        dependencies: PartDependencies,
        owner: str,
        lead: Callable[[], Lead | None],
        config: OutputPartsConfig = OutputPartsConfig(),
        may_continue: MayContinue = lambda: True,
    ) -> None:
        self._dependencies = dependencies
        self._store = dependencies.store
        self._config = config
        self._may_continue = may_continue
        self._threads = WriterThreads(
            lambda: PartWriter(dependencies, owner, may_continue), config.threads_max
        )
        self._manifests = Manifests(dependencies.store, Publication(dependencies.store, lead))
        self._waited: dict[str, object] = {}  # by job, as of the last pass
        self._listed: dict[str, tuple[int, datetime]] = {}  # parts in a job's manifest, and since when
        self.interval_s = config.interval_s
        self.wait_until_idle = self._threads.wait_until_idle

    def run_once(self, now: datetime) -> Cut:
        expired = self._expire(now)
        parts = self._cut()
        with self._store.snapshot() as tx:
            is_wanted = tx.parts.has_claimable(now)
        if is_wanted:
            self._threads.wake()
        stopped = self._stop_unwritable(now)
        return Cut(parts=parts, expired=expired, manifests=self._write_manifests(now), stopped=stopped)

    def _expire(self, now: datetime) -> int:
        with self._store.snapshot() as tx:  # a write would keep others waiting at every pass
            has_expired = tx.parts.has_expired(now)
        return self._store.run(lambda tx: tx.parts.expire(now)) if has_expired else 0

    def _cut(self) -> int:
        with self._store.snapshot() as tx:
            waiting = tx.cuts.waiting()
        self._waited = {id: many for id, many in self._waited.items() if id in waiting}
        parts = 0
        for job_id in [id for id, many in waiting.items() if self._waited.get(id) != many]:
            check(self._may_continue)
            with self._store.snapshot() as tx:
                job = tx.jobs.fetch(job_id)
            parts += cut_job(self._store, job)
            self._waited[job_id] = waiting[job_id]  # a job whose cutting raised is looked at again
        return parts

    def _stop_unwritable(self, now: datetime) -> int:
        """Stop jobs whose output cannot be written: no further row is run in vain. Assembly says why."""
        with self._store.snapshot() as tx:
            found = tx.parts.unwritable()
        for job_id in found:
            with self._store.transaction() as tx:
                request_stop(tx, tx.jobs.fetch(job_id), StopReason.FAILED, now)
        return len(found)

    def _write_manifests(self, now: datetime) -> int:
        """Of running jobs with parts that their manifest does not have."""
        with self._store.snapshot() as tx:
            written = tx.parts.written_of_running()
        self._listed = {id: listed for id, listed in self._listed.items() if id in written}
        due = [id for id, count in written.items() if self._is_due(id, count, now)]
        for job_id in due:
            check(self._may_continue)
            self._listed[job_id] = (written[job_id], now)
            self._write_manifest(job_id, now)
        return len(due)

    def _is_due(self, job_id: str, count: int, now: datetime) -> bool:
        listed, since = self._listed.get(job_id, (0, None))
        interval = timedelta(seconds=self._config.manifest_interval_s)
        return count != listed and (since is None or not since <= now < since + interval)

    def _write_manifest(self, job_id: str, now: datetime) -> None:
        with self._store.snapshot() as tx:
            job = tx.jobs.fetch(job_id)
        if job.state is not JobState.RUNNING:
            return  # assembly writes the last one
        try:
            place = destination_of(job, self._dependencies.objects, self._dependencies.locations)
            self._manifests.write(job, place)
            record_problem(self._store, job_id, None)
        except InvalidRequest as error:  # assembly says so
            log.warning("no output: %s", error, extra={"action": "output_impossible", "job": job.id})
            with self._store.transaction() as tx:
                request_stop(tx, tx.jobs.fetch(job_id), StopReason.FAILED, tx.now())
        except (OutputTrouble, StorageError) as error:
            log.warning("no manifest: %s", error, extra={"action": "manifest_postponed", "job": job.id})
            self._listed[job_id] = (0, now)  # it is tried again
            record_problem(self._store, job_id, problem_of(job, error))


def cut_job(store: Store, job: Job) -> int:
    """Cut what can be. Returns how many parts."""
    with store.snapshot() as tx:
        before = tx.parts.states(job.id).total()
    parts, after_no = 0, -1
    while True:
        limits = _limits(job, before + parts)

        def work(tx: Transaction, limits: CutLimits = limits, after_no: int = after_no) -> CutPass:
            return cut(tx, job, limits, tx.now(), is_complete=_is_complete(job), after_no=after_no)

        done = store.run(work)
        parts += done.parts
        if done.after_no is None:
            return parts
        after_no = done.after_no


def _limits(job: Job, parts: int) -> CutLimits:
    """Of the next parts of a job that has so many."""
    options, least = job.spec.parts, least_shards(parts)
    part_shards = max(least, CutLimits.part_shards)
    return CutLimits(options.part_bytes, options.part_rows or ROWS_MAX, part_shards, least)


def _is_complete(job: Job) -> bool:
    """Whether no shards will be added to it."""
    return job.planned_at is not None or job.stop_reason is not None
