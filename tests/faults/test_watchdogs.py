"""Workers that are alive and do nothing: each leaves with a reason, gives back what it held, starts again."""

import signal
from collections.abc import Collection

import pytest

from nightshift.fleet import DeathCause, Worker
from tests.faults import oracle
from tests.faults.oracle import Limits
from tests.faults.processes import wait_for
from tests.faults.proxy import Swallow
from tests.faults.service import Parts, Service
from tests.faults.workload import Row, some_rows, submit_bulk, submit_online

IMPATIENT = {"STEP_TIMEOUT_S": "2", "DEAF_AFTER_S": "5"}
FAILS = Limits(outcomes_checked=("succeeded", "errored"))


def dead(service: Service) -> Collection[Worker]:
    with service.store.snapshot() as tx:
        return [worker for worker in tx.workers.list() if worker.ended_cause is not None]


def holders(service: Service) -> set[str]:
    """The workers with a lease, the dead ones included."""
    with service.store.snapshot() as tx:
        return {worker.id for worker in tx.workers.list() if tx.leases.of_worker(worker.id, 10)}


@pytest.mark.parametrize(
    ("prompt", "cause", "said"),
    [
        ("!raise", DeathCause.ENGINE_DIED, "engine died"),
        ("!hang", DeathCause.STUCK_STEP, "has not ended"),
        ("!abort", DeathCause.ABORTED, "Fatal Python error"),
    ],
)
def test_an_engine_that_fails_takes_its_process_along_and_the_other_work_goes_on(
    service_of, prompt, cause, said
):
    service = service_of(Parts(), **IMPATIENT)
    rows = submit_bulk(service, some_rows(40, step_ms=20))
    wait_for("a shard is held", lambda: holders(service))

    # Tried once, it ends as failed; what else the worker held is run again.
    submit_online(service, Row("bad", prompt), retry_on_interrupt=False)
    wait_for("the worker has died", lambda: dead(service))

    (died,) = dead(service)
    assert died.ended_cause is cause
    assert died.id not in holders(service)
    oracle.quiesce(service, [rows])
    oracle.check(service, [rows], Limits(attempts_max=2))
    assert said in service.log("worker-1")


def test_a_worker_ended_by_a_fault_in_its_own_code_is_told_from_one_that_was_killed(service_of):
    service = service_of()
    service.kill("worker-1", signal.SIGSEGV)
    wait_for("its death is known", lambda: dead(service))
    service.wait_until_ready()
    service.kill("worker-1", signal.SIGKILL)
    wait_for("the next one's is, too", lambda: len(dead(service)) == 2)

    assert {worker.ended_cause for worker in dead(service)} == {DeathCause.SIGNAL, DeathCause.KILLED}


def test_a_consumer_that_hears_nothing_is_replaced(service_of):
    """Redis answers everybody, and takes messages off its lists; those that should arrive here do not."""
    service = service_of(Parts(proxies=frozenset({"redis"})), **IMPATIENT)
    service.proxy["redis"].set(Swallow(b"nightshift.online"))

    jobs = [submit_online(service, row) for row in some_rows(12)]
    wait_for("the worker has left", lambda: dead(service))
    service.proxy["redis"].heal()

    assert [worker.ended_cause for worker in dead(service)] == [DeathCause.DEAF]
    oracle.quiesce(service, jobs)
    assert oracle.check(service, jobs).attempts_most == 1, "whoever is deaf hands back what it has"
