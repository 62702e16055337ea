"""A few hands for work on jobs that takes long: several jobs at once, each in a thread of its own.

A large input must not keep small ones waiting, so a pass only hands work out and goes on. A job whose work
could not be done now (storage or database away) rests for a growing while; how the work of others ended is
counted. What the work is, is not known here.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from nightshift.errors import DatabaseUnavailable, StorageError
from nightshift.jobs import Job
from scheduler.runtime.duty import Interrupted

log = logging.getLogger(__name__)

POSTPONED = "postponed"

Work = Callable[[Job], str]  # returns how it ended, in a word that is counted
Look = Callable[[int, Job | None], Sequence[Job]]  # at most so many jobs that wait, those after this one

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class CrewConfig:
    jobs_at_once: int = 4  # threads; they wait for storage most of the time
    rest_first_s: float = 2.0  # after the first failed try at a job; doubled after each further one …
    rest_max_s: float = 120.0  # … up to this, for as long as the job has time

    def __post_init__(self) -> None:
        if self.jobs_at_once < 1 or not 0 < self.rest_first_s <= self.rest_max_s:
            raise ValueError("a crew needs a hand, and rests between tries")

    def rest(self, failures: int) -> timedelta:
        """How long a job is left alone after so many failed tries in a row."""
        return timedelta(seconds=min(self.rest_max_s, self.rest_first_s * 2.0 ** (failures - 1)))


@dataclass
class _Rest:
    failures: int
    begun: datetime | None = None  # None: the next pass will say, it knows what time it is


class Crew:
    """Hands out work on jobs. Thread-safe."""

    def __init__(self, name: str, work: Work, config: CrewConfig = CrewConfig()) -> None:
        self._name = name
        self._work = work
        self._config = config
        self._busy: set[str] = set()
        self._rests: dict[str, _Rest] = {}
        self._outcomes: Counter[str] = Counter()
        self._last_seen: Job | None = None
        self._changed = threading.Condition()

    def hand_out(self, look: Look, looked_at_max: int, now: datetime) -> int:
        """Begin work on the jobs that wait, a page of them in each pass, so that many that rest hide none
        behind them. Returns how many were begun.
        """
        if self.is_full:
            return 0
        page = look(looked_at_max, self._last_seen)
        self._last_seen = page[-1] if len(page) == looked_at_max else None  # from the first one again
        return sum(self.start(job, now) for job in page)

    @property
    def is_full(self) -> bool:
        """Whether all hands are busy."""
        with self._changed:
            return len(self._busy) >= self._config.jobs_at_once

    def start(self, job: Job, now: datetime) -> bool:
        """Begin work on a job. False: it is under way or resting, or all hands are busy.

        Raises RuntimeError where this machine has no thread left; then the job waits as before.
        """
        with self._changed:
            is_full = len(self._busy) >= self._config.jobs_at_once
            if is_full or job.id in self._busy or self._is_resting(job.id, now):
                return False
            self._busy.add(job.id)
        hand = threading.Thread(target=self._run, args=(job,), name=f"{self._name}-{job.id}", daemon=True)
        try:
            hand.start()
        except BaseException:
            with self._changed:
                self._busy.remove(job.id)
                self._changed.notify_all()
            raise
        return True

    def take_outcomes(self) -> "Counter[str]":
        """How work ended since this was last asked."""
        with self._changed:
            taken, self._outcomes = self._outcomes, Counter()
            return taken

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait for the work under way. False: some is still."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def _is_resting(self, job_id: str, now: datetime) -> bool:
        self._forget_the_rested(now)
        rest = self._rests.get(job_id)
        if rest is None:
            return False
        if rest.begun is None:
            rest.begun = now
        # Before it has begun? The database's clock was set back, and nobody knows how long ago that was.
        return rest.begun <= now < rest.begun + self._config.rest(rest.failures)

    def _forget_the_rested(self, now: datetime) -> None:
        """Jobs that have long been ready for another try and were not offered: they ended some other way."""
        grace = timedelta(seconds=2 * self._config.rest_max_s)
        self._rests = {
            job_id: rest
            for job_id, rest in self._rests.items()
            if rest.begun is None or now < rest.begun + self._config.rest(rest.failures) + grace
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
            self._busy.remove(job_id)
            before = self._rests.pop(job_id, None)
            if outcome == POSTPONED:
                self._rests[job_id] = _Rest(failures=before.failures + 1 if before else 1)
            if outcome is not None:
                self._outcomes[outcome] += 1
            self._changed.notify_all()


def side_by_side(make: Callable[[Item], Made], items: Sequence[Item], hands: int) -> list[Made]:
    """`make` of every item, in order, by so many threads at once. Raises what the first failure raised.

    Like the crew's, the threads are daemons: one that hangs does not keep the process from ending. What is in
    force where this is called (time limits, fences) is in force in them.
    """
    made: dict[int, Made] = {}
    failures: list[Exception] = []
    todo = iter(range(len(items)))
    taking_turns = threading.Lock()

    def work() -> None:
        while not failures:
            with taking_turns:
                number = next(todo, None)
            if number is None:
                return
            try:
                made[number] = make(items[number])
            except Exception as error:  # noqa: BLE001 - the edge of a thread: raised again in the caller's
                failures.append(error)

    threads = [
        threading.Thread(target=copy_context().run, args=(work,), name=f"hand-{number}", daemon=True)
        for number in range(min(hands, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:  # no thread is left on this machine: those that run are to stop
        failures.append(error)
    for thread in threads:
        if thread.ident is not None:
            thread.join()
    if failures:
        raise failures[0]
    return [made[number] for number in range(len(items))]
