"""Cuts parts of the output of native jobs from ended shards while a job runs, and lists them in its manifest.

Threads of this process and workers write them. A pass itself only asks the database.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from nightshift.bulk.results.part_writer import PartDependencies, PartWriter, WritingStopped
from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import Job, StopReason
from nightshift.jobs.leases import Lead
from nightshift.jobs.part import CutLimits, least_shards
from nightshift.lifecycle.cutting import CutPass, cut
from nightshift.lifecycle.transitions import request_stop
from nightshift.store import OutputTotals, PendingWork, Store, Transaction
from nightshift.store.shards.cuts import OutputProgress
from scheduler.output.running_manifests import ManifestOutcome, RunningManifests, RunningManifestsConfig
from scheduler.runtime.duty import MayContinue, PassResult, check, earliest
from scheduler.runtime.thread_pools import POSTPONED

ROWS_MAX: Final = 2**53  # in a part, where the job names no limit


@dataclass(frozen=True)
class OutputPartsConfig:
    interval_s: float = 0.5
    threads_max: int = 3  # each writes a part at a time; the last only of tenants with none under way
    manifests: RunningManifestsConfig = field(default_factory=RunningManifestsConfig)


@dataclass(frozen=True, kw_only=True)
class Cut(PassResult):
    states = frozenset({"postponed"})

    parts: int = 0
    expired: int = 0  # leases of parts
    manifests: int = 0
    postponed: int = 0  # manifests whose place was away
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
            lambda number: PartWriter(
                dependencies, owner, may_continue, of_idle_tenants=0 < number == config.threads_max - 1
            ),
            config.threads_max,
        )
        self._manifests = RunningManifests(dependencies, lead, config.manifests, may_continue)
        self._seen: dict[str, OutputProgress] = {}  # each job's progress when it was last cut
        self._totals = OutputTotals()  # as of the last pass
        self.interval_s = config.interval_s

    def due_at(self, work: PendingWork) -> datetime | None:
        if work.is_part_claimable or work.has_part_problem or work.output != self._totals:
            return work.at
        return earliest(
            work.part_delayed_until, work.first_part_lease_ends_at, self._manifests.due_at(work.at)
        )

    def run_once(self, now: datetime) -> Cut:
        expired = self._expire(now)
        with self._store.snapshot() as tx:
            under_way = tx.cuts.under_way()
        parts = self._cut(under_way)
        with self._store.snapshot() as tx:
            is_wanted = tx.parts.has_claimable(now)
        if is_wanted:
            self._threads.wake()
        stopped = self._stop_unwritable(now)
        written = {id: job.parts_written for id, job in under_way.items() if job.is_running}
        manifests = self._manifests.run_once(now, written).ended
        self._totals = OutputTotals.from_progress(
            under_way.values()
        )  # last: a pass that raised is made again
        return Cut(
            parts=parts,
            expired=expired,
            manifests=manifests[ManifestOutcome.WRITTEN],
            postponed=manifests[POSTPONED],
            stopped=stopped + manifests[ManifestOutcome.STOPPED],
        )

    @property
    def blocked_s(self) -> float:
        return self._manifests.blocked_s

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until nothing is being written. False: a part or a manifest still is."""
        ends_at_s = time.monotonic() + timeout_s
        is_idle = self._threads.wait_until_idle(timeout_s)
        return self._manifests.wait_until_idle(max(0.0, ends_at_s - time.monotonic())) and is_idle

    def _expire(self, now: datetime) -> int:
        with self._store.snapshot() as tx:  # a write would keep others waiting at every pass
            has_expired = tx.parts.has_expired(now)
        return self._store.run(lambda tx: tx.parts.expire(now)) if has_expired else 0

    def _cut(self, under_way: Mapping[str, OutputProgress]) -> int:
        seen = {id: replace(progress, parts_written=0) for id, progress in under_way.items()}
        self._seen = {id: progress for id, progress in self._seen.items() if id in seen}
        parts = 0
        for job_id in [id for id, progress in seen.items() if self._seen.get(id) != progress]:
            check(self._may_continue)
            with self._store.snapshot() as tx:
                job = tx.jobs.fetch(job_id)
            parts += cut_job(self._store, job)
            self._seen[job_id] = seen[job_id]  # a job whose cutting raised is looked at again
        return parts

    def _stop_unwritable(self, now: datetime) -> int:
        """Stops jobs whose output cannot be written: no further row is run in vain. Assembly says why."""
        with self._store.snapshot() as tx:
            job_ids = tx.parts.unwritable()
        for job_id in job_ids:
            with self._store.transaction() as tx:
                request_stop(tx, tx.jobs.fetch(job_id), StopReason.FAILED, now)
        return len(job_ids)


def cut_job(store: Store, job: Job) -> int:
    """Cuts what can be. Returns how many parts."""
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
    """Limits of the next part of a job that has this many."""
    options, least = job.spec.options, least_shards(parts)
    part_shards = max(least, CutLimits.part_shards)
    return CutLimits(options.part_bytes, options.part_rows or ROWS_MAX, part_shards, least)


def _is_complete(job: Job) -> bool:
    """Whether no shards will be added to it."""
    return job.planned_at is not None or job.stop_reason is not None


log = logging.getLogger(__name__)


class WriterThreads:
    """Threads that write parts, each by its number."""

    def __init__(self, writer: Callable[[int], PartWriter], threads_max: int) -> None:
        self._writer = writer
        self._threads_max = threads_max
        self._changed = threading.Condition()
        self._busy: set[int] = set()

    def wake(self) -> None:
        """Lets threads look for parts, as many as may run. Each ends when it finds none."""
        with self._changed:
            missing = sorted(set(range(self._threads_max)) - self._busy)
            self._busy.update(missing)
        for number in missing:
            thread = threading.Thread(target=self._run, args=(number,), name="parts", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._ended(*(other for other in missing if other >= number))
                raise

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until nothing is being written. False: a part still is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def _run(self, number: int) -> None:
        writer = self._writer(number)
        try:
            while writer.write_next():
                pass
        except WritingStopped:
            log.info("writing stopped", extra={"action": "writing_stopped"})
        except DatabaseUnavailable as error:
            log.warning("no part written: %s", error, extra={"action": "part_postponed"})
        except Exception:
            log.exception("writing a part broke", extra={"action": "part_broke"})
        finally:
            self._ended(number)

    def _ended(self, *numbers: int) -> None:
        with self._changed:
            self._busy.difference_update(numbers)
            self._changed.notify_all()
