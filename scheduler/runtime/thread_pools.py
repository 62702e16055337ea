"""Thread pools for slow work: several jobs at once, or several parts of one job.

A pass only starts work: a large input delays no small one. A job whose work failed backs off.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from nightshift.errors import DatabaseUnavailable, StorageError
from nightshift.jobs import Job
from nightshift.jobs.backoff import Backoff
from scheduler.runtime.duty import Interrupted

log = logging.getLogger(__name__)

POSTPONED = "postponed"

Work = Callable[[Job], str]  # returns its outcome, to be counted
FetchWaiting = Callable[[int, Job | None], Sequence[Job]]  # (limit, after this job)
MayStart = Callable[[Job, Sequence[Job]], bool]  # (this job, beside those under way)

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class JobPoolConfig:
    threads_max: int = 4  # jobs at once; each mostly waits for storage
    jobs_looked_at_max: int = 100  # per pass
    retry_first_s: float = 2.0  # after a job's first failure, then doubled …
    retry_max_s: float = 120.0  # … up to this

    def retry_delay(self, failures: int) -> timedelta:
        """The delay after so many failures in a row."""
        return timedelta(seconds=Backoff(self.retry_first_s, self.retry_max_s).delay_s(failures))


def leaves_a_thread(threads_max: int) -> MayStart:
    """A tenant has all threads but one, which is left for another's job."""

    def may_start(job: Job, under_way: Sequence[Job]) -> bool:
        held = sum(other.tenant_id == job.tenant_id for other in under_way)
        return held < max(1, threads_max - 1)

    return may_start


@dataclass
class _Failures:
    count: int
    began_at: datetime | None = None  # set by the next pass, by the database's clock


@dataclass(frozen=True)
class PoolPass:
    started: Sequence[Job]
    ended: "Counter[str]"


class JobPool:
    """A pool with a thread for each job. Thread-safe."""

    def __init__(
        self,
        name: str,
        fetch_waiting: FetchWaiting,
        work: Work,
        config: JobPoolConfig = JobPoolConfig(),
        may_start: MayStart = lambda job, under_way: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._fetch_waiting = fetch_waiting
        self._work = work
        self._config = config
        self._may_start = may_start
        self._clock = clock
        self._changed_at_s = clock()  # when a job last began or ended
        self._busy: dict[str, Job] = {}
        self._backoffs: dict[str, _Failures] = {}
        self._outcomes: Counter[str] = Counter()
        self._last_seen: Job | None = None
        self._changed = threading.Condition()

    def run_once(self, now: datetime, first: Sequence[Job] = ()) -> PoolPass:
        """Starts `first`, then waiting jobs, of the next page in each pass: backoffs hide no others.

        Of a page, those of tenants with fewer jobs under way go first.
        """
        ended = self.take_outcomes()
        if self.is_full:
            return PoolPass((), ended)
        limit = self._config.jobs_looked_at_max
        page = self._fetch_waiting(limit, self._last_seen)
        self._last_seen = page[-1] if len(page) == limit else None  # None: start over
        offered = {job.id: job for job in (*first, *self._in_turn(page))}
        return PoolPass([job for job in offered.values() if self.start(job, now)], ended)

    @property
    def is_full(self) -> bool:
        with self._changed:
            return len(self._busy) >= self._config.threads_max

    @property
    def is_busy(self) -> bool:
        """Whether jobs are under way, or have ended and their outcomes are not taken."""
        with self._changed:
            return bool(self._busy) or bool(self._outcomes)

    @property
    def blocked_s(self) -> float:
        """Seconds for which every thread has been busy without one becoming free; 0: one is free."""
        with self._changed:
            is_full = len(self._busy) >= self._config.threads_max
            return self._clock() - self._changed_at_s if is_full else 0.0

    def start(self, job: Job, now: datetime) -> bool:
        """Starts a job. False: it is under way or in backoff, all threads are busy, or `may_start` said no.

        Raises RuntimeError if no thread can be started.
        """
        with self._changed:
            is_full = len(self._busy) >= self._config.threads_max
            if is_full or job.id in self._busy or self._is_in_backoff(job.id, now):
                return False
            if not self._may_start(job, list(self._busy.values())):
                return False
            self._busy[job.id] = job
            self._changed_at_s = self._clock()
        thread = threading.Thread(target=self._run, args=(job,), name=f"{self._name}-{job.id}", daemon=True)
        try:
            thread.start()
        except BaseException:
            with self._changed:
                del self._busy[job.id]
                self._changed.notify_all()
            raise
        return True

    @property
    def under_way(self) -> Sequence[Job]:
        """The jobs under way, as they were when they were started."""
        with self._changed:
            return list(self._busy.values())

    def take_outcomes(self) -> "Counter[str]":
        """Returns the outcomes since the last call."""
        with self._changed:
            taken, self._outcomes = self._outcomes, Counter()
            return taken

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until no work is under way. False: some still is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def _in_turn(self, page: Sequence[Job]) -> Sequence[Job]:
        """Orders jobs in rounds, one of each tenant in each; those under way count as the first rounds."""
        with self._changed:
            under_way = Counter(job.tenant_id for job in self._busy.values())
        return in_turn(page, {}, under_way)

    def _is_in_backoff(self, job_id: str, now: datetime) -> bool:
        self._forget_old_backoffs(now)
        backoff = self._backoffs.get(job_id)
        if backoff is None:
            return False
        if backoff.began_at is None:
            backoff.began_at = now
        # False if the database's clock was set back.
        return backoff.began_at <= now < backoff.began_at + self._config.retry_delay(backoff.count)

    def _forget_old_backoffs(self, now: datetime) -> None:
        """Drops the backoffs of jobs long not offered: they ended some other way."""
        grace = timedelta(seconds=2 * self._config.retry_max_s)
        self._backoffs = {
            job_id: backoff
            for job_id, backoff in self._backoffs.items()
            if backoff.began_at is None
            or now < backoff.began_at + self._config.retry_delay(backoff.count) + grace
        }

    def _run(self, job: Job) -> None:
        outcome: str | None = None
        try:
            outcome = self._work(job)
        except Interrupted:
            log.info("%s interrupted", self._name, extra={"action": "interrupted", "job": job.id})
        except (StorageError, DatabaseUnavailable) as error:
            outcome = POSTPONED
            log.warning(
                "%s postponed: %s",
                self._name,
                error,
                extra={"action": f"{self._name}_postponed", "job": job.id},
            )
        except Exception:
            outcome = POSTPONED
            log.exception("%s broke", self._name, extra={"action": f"{self._name}_broke", "job": job.id})
        finally:
            self._ended(job.id, outcome)

    def _ended(self, job_id: str, outcome: str | None) -> None:
        with self._changed:
            del self._busy[job_id]
            self._changed_at_s = self._clock()
            before = self._backoffs.pop(job_id, None)
            if outcome == POSTPONED:
                self._backoffs[job_id] = _Failures(count=before.count + 1 if before else 1)
            if outcome is not None:
                self._outcomes[outcome] += 1
            self._changed.notify_all()


def in_turn(
    jobs: Sequence[Job], turns: Mapping[str, int], under_way: "Counter[str] | None" = None
) -> list[Job]:
    """The jobs in rounds, one of each tenant in each; in a round, the tenant served longest ago first. Pure.

    `jobs` has every tenant's in its own order. `turns` says when each tenant was served, as a count.
    """
    rounds = Counter(under_way)
    keyed = []
    for job in jobs:
        keyed.append((rounds[job.tenant_id], turns.get(job.tenant_id, 0), job))
        rounds[job.tenant_id] += 1
    return [job for _, _, job in sorted(keyed, key=lambda turn: turn[:2])]


def map_in_threads(function: Callable[[Item], Made], items: Sequence[Item], threads_max: int) -> list[Made]:
    """`function` of every item, in order, by so many threads. Raises what the first failure raised.

    The threads are daemons, and run in the caller's context (time limits, fences).
    """
    made: dict[int, Made] = {}
    failures: list[Exception] = []
    todo = iter(range(len(items)))
    next_lock = threading.Lock()

    def work() -> None:
        while not failures:
            with next_lock:
                number = next(todo, None)
            if number is None:
                return
            try:
                made[number] = function(items[number])
            except Exception as error:  # noqa: BLE001 - raised in the caller
                failures.append(error)

    threads = [
        threading.Thread(target=copy_context().run, args=(work,), name=f"map-{number}", daemon=True)
        for number in range(min(threads_max, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:  # stop the threads that run
        failures.append(error)
    for thread in threads:
        if thread.ident is not None:
            thread.join()
    if failures:
        raise failures[0]
    return [made[number] for number in range(len(items))]
