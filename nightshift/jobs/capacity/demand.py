"""The number of workers that waiting work needs. Pure.

Work is counted in seconds of a worker: rows left, divided by the rows that a busy worker of the model was
last measured to run in a second. All of it is there now, and can be divided among any number of workers, up
to one for each shard. So n workers that run what is due first meet every deadline if, for each, all work due
by then is no more than n times the time until then; and no order meets them with fewer.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Final

from nightshift.fleet.figures import ServiceFigures
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs.capacity.backlog import WaitingJob

COLD_START_S: Final = 120.0  # until a worker that is not there, or has not loaded the model, runs rows
LEAST_S: Final = 60.0  # within this is to be done what is due sooner, or late already
ROUNDING: Final = 1e-9  # a share of a worker that no one starts another for


@dataclass(frozen=True)
class Work:
    """The work of one job, for one worker."""

    worker_s: float
    due_in_s: float  # from when the workers run


@dataclass(frozen=True, order=True)
class Pool:
    """Workers that may run the same jobs."""

    model: str
    capacity: str  # as jobs name it: spot, on_demand, or any
    name: str = ""  # the worker pool that the jobs name; empty: they run in any


def workers_wanted(work: Iterable[Work], shards: int) -> int:
    """The fewest that meet every deadline that can be met. `shards`: how many there are, one to a worker."""
    worker_s, wanted = 0.0, 0
    for job in sorted(work, key=lambda one: one.due_in_s):
        worker_s += job.worker_s
        wanted = max(wanted, ceil(worker_s / max(job.due_in_s, LEAST_S) - ROUNDING))
    return min(wanted, shards)


def demand(
    waiting: Iterable[WaitingJob], paces: Mapping[str, float], now: datetime, warm: Set[str]
) -> dict[Pool, int]:
    """Workers wanted, by pool. `paces`: rows a busy worker runs in a second, by model; of a model that was
    never measured one worker is wanted, which will be. `warm`: the models that live workers have loaded.
    """
    pools: defaultdict[Pool, list[WaitingJob]] = defaultdict(list)
    for job in waiting:
        if not job.is_paused and job.queued + job.leased:
            pools[Pool(job.model, job.capacity, job.pool or "")].append(job)
    return {
        pool: _wanted(jobs, paces.get(pool.model), now, pool.model in warm) for pool, jobs in pools.items()
    }


def _wanted(jobs: Sequence[WaitingJob], pace: float | None, now: datetime, is_warm: bool) -> int:
    if not pace:
        return 1
    start_s = 0.0 if is_warm else COLD_START_S
    work = [Work(job.rows_left / pace, (job.deadline_at - now).total_seconds() - start_s) for job in jobs]
    shards = sum(job.queued + job.leased for job in jobs)
    return max(1, workers_wanted(work, shards))


ANY_CAPACITY: Final = "any"  # capacity of a job that runs on any machine


@dataclass(frozen=True, order=True)
class PoolSupply:
    """The workers of a pool that has work. `starting`: they still load models."""

    pool: Pool
    wanted: int
    ready: int
    starting: int

    @property
    def missing(self) -> int:
        return max(0, self.wanted - self.ready - self.starting)


def supply(
    waiting: Iterable[WaitingJob], alive: Sequence[Worker], recorded: ServiceFigures | None, now: datetime
) -> list[PoolSupply]:
    """Workers wanted and there, by model, for each pool with work. `recorded`: tells the models' paces."""
    ready = [worker for worker in alive if worker.state is WorkerState.READY]
    starting = [worker for worker in alive if worker.state is WorkerState.STARTING]
    warm = {model for worker in ready for model in worker.warm}
    wanted = demand(waiting, recorded.rows_per_busy_s if recorded else {}, now, warm)
    return sorted(
        PoolSupply(
            pool,
            count,
            sum(_serves(worker, pool) for worker in ready),
            sum(_serves(worker, pool) for worker in starting),
        )
        for pool, count in wanted.items()
        if pool.model  # else its input has not been read
    )


def serving(alive: Iterable[Worker], pool: Pool) -> list[Worker]:
    """The workers that may run the pool's jobs. Those that start may come to serve any."""
    return [worker for worker in alive if _serves(worker, pool)]


def _serves(worker: Worker, pool: Pool) -> bool:
    """A worker that starts has told no models yet, and may serve any."""
    has_model = pool.model in worker.models or worker.state is WorkerState.STARTING
    is_capable = pool.capacity in (ANY_CAPACITY, worker.capacity)
    return has_model and is_capable and (not pool.name or pool.name in worker.pools)
