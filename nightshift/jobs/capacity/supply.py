"""The workers that are wanted beside those that are there. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.fleet.figures import ServiceFigures
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs.capacity.backlog import WaitingJob
from nightshift.jobs.capacity.demand import Pool, demand

ANY_CAPACITY: Final = "any"  # of a job that runs on any machine


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
    """Of each pool that has work, by model. `recorded`: the service's last figures, for the models' paces."""
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


def _serves(worker: Worker, pool: Pool) -> bool:
    """A worker that starts has told no models yet, and may serve any."""
    has_model = pool.model in worker.models or worker.state is WorkerState.STARTING
    is_capable = pool.capacity in (ANY_CAPACITY, worker.capacity)
    return has_model and is_capable and (not pool.name or pool.name in worker.pools)
