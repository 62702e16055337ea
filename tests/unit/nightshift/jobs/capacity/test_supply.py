"""Workers wanted beside those there: which worker counts for which pool."""

from hypothesis import given
from hypothesis import strategies as st

from nightshift.fleet.figures import ServiceFigures
from nightshift.fleet.workers import Capacity, WorkerState
from nightshift.jobs.capacity.backlog import WaitingJob
from nightshift.jobs.capacity.demand import Pool, PoolSupply, supply
from nightshift.lifecycle.problems import why_unserved
from nightshift.store.jobs.problems import Wanted
from tests.helpers.fakes import STARTS_AT, a_worker
from tests.unit.nightshift.jobs.capacity.test_demand import a_waiting_job


def waiting(**overrides: object) -> WaitingJob:
    return a_waiting_job(**{"model": "m", "queued": 10, "rows_left": 1000, **overrides})


PACED = ServiceFigures(at=STARTS_AT, rows_per_busy_s={"m": 0.25})


def test_ready_workers_with_the_model_count_and_one_that_starts_as_coming():
    alive = [
        a_worker(models=("m",)),
        a_worker(models=("other",)),
        a_worker(models=("m",), state=WorkerState.DRAINING),
        a_worker(models=(), state=WorkerState.STARTING),
    ]
    (pool,) = supply([waiting()], alive, PACED, STARTS_AT)
    assert pool == PoolSupply(Pool("m", "any"), wanted=4, ready=1, starting=1)
    assert pool.missing == 2


def test_a_jobs_capacity_decides_which_workers_may_run_it():
    alive = [
        a_worker(models=("m",), capacity=Capacity.SPOT),
        a_worker(models=("m",), capacity=Capacity.ON_DEMAND),
    ]
    pools = supply(
        [waiting(capacity="spot"), waiting(capacity="on_demand"), waiting()], alive, None, STARTS_AT
    )
    ready = {supplied.pool.capacity: supplied.ready for supplied in pools}
    assert ready == {"spot": 1, "on_demand": 1, "any": 2}


@given(
    state=st.sampled_from([WorkerState.READY, WorkerState.DRAINING]),
    models=st.sampled_from([("m",), ("other",), ("other", "m")]),
    machine_capacity=st.sampled_from(Capacity),
    pools=st.sampled_from([(), ("a",), ("b", "a"), ("b",)]),
    capacity=st.sampled_from(["any", *Capacity]),
    pool=st.sampled_from([None, "a"]),
)
def test_a_worker_is_ready_for_a_job_exactly_where_the_jobs_problem_says_so(
    state: WorkerState,
    models: tuple[str, ...],
    machine_capacity: Capacity,
    pools: tuple[str, ...],
    capacity: str,
    pool: str | None,
):
    worker = a_worker(state=state, models=models, capacity=machine_capacity, pools=pools)
    [supplied] = supply([waiting(capacity=capacity, pool=pool)], [worker], None, STARTS_AT)
    assert bool(supplied.ready) == (why_unserved(Wanted("m", capacity, pool), [worker]) is None)


def test_more_than_are_wanted_are_not_missing():
    (pool,) = supply([waiting(rows_left=1)], [a_worker(models=("m",))] * 3, PACED, STARTS_AT)
    assert (pool.wanted, pool.ready, pool.missing) == (1, 3, 0)


def test_what_has_not_been_read_wants_no_worker_by_a_model():
    assert supply([waiting(model="")], [], None, STARTS_AT) == []
