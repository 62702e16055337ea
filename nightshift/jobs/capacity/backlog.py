"""Work that waits for workers, as the database has it, by what decides which workers may run it. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from nightshift.jobs import JobKind
from nightshift.jobs.priorities import PriorityClass


@dataclass(kw_only=True, slots=True)  # one of each job: frozen ones take longer to make
class WaitingJob:
    """An unfinished bulk job; or online requests that differ in nothing but their time, as one."""

    kind: JobKind
    model: str
    priority: PriorityClass
    capacity: str  # capacity of the workers that may run it: spot, on_demand or any
    created_at: datetime  # the oldest of them
    deadline_at: datetime  # the first of them; of a job whose window is open, its end if that is earlier
    queued: int  # shards, or online requests
    leased: int
    rows_left: int  # as far as they are known or estimated
    rows_done: int = 0
    is_paused: bool = False  # nothing of it starts
    pool: str | None = None  # pool of the workers that may run it; None: any


@dataclass(frozen=True, order=True)
class Group:
    kind: JobKind
    model: str
    priority: PriorityClass
    capacity: str


@dataclass(frozen=True)
class Backlog:
    """The waiting work of one group, without paused jobs."""

    queued: int = 0
    leased: int = 0
    rows_left: int = 0
    oldest_at: datetime | None = None  # creation of the oldest queued job

    def __add__(self, other: "Backlog") -> "Backlog":
        ages = [at for at in (self.oldest_at, other.oldest_at) if at is not None]
        return Backlog(
            self.queued + other.queued,
            self.leased + other.leased,
            self.rows_left + other.rows_left,
            min(ages, default=None),
        )


def by_group(waiting: Iterable[WaitingJob]) -> dict[Group, Backlog]:
    """Paused jobs count as far as they are leased: no worker is wanted for the rest."""
    groups: defaultdict[tuple[JobKind, str, PriorityClass, str], _Sums] = defaultdict(_Sums)
    for job in waiting:  # thousands at a scrape: nothing is made for each
        sums = groups[job.kind, job.model, job.priority, job.capacity]
        sums.leased += job.leased
        if job.is_paused:
            continue
        sums.queued += job.queued
        sums.rows_left += job.rows_left
        if job.queued and (sums.oldest_at is None or job.created_at < sums.oldest_at):
            sums.oldest_at = job.created_at
    return {
        Group(*key): Backlog(sums.queued, sums.leased, sums.rows_left, sums.oldest_at)
        for key, sums in groups.items()
    }


@dataclass(slots=True)
class _Sums:
    queued: int = 0
    leased: int = 0
    rows_left: int = 0
    oldest_at: datetime | None = None
