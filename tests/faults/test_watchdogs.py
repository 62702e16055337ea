"""Workers that are alive and do nothing, or die of what they run: each leaves with a reason, what it held is
given back at once, and it is started again."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.fleet import DeathCause, Worker
from tests.faults import oracle
from tests.faults.oracle import Limits
from tests.faults.processes import wait_for
from tests.faults.proxy import Swallow
from tests.faults.service import Parts, Service, running
from tests.faults.workload import Row, some_rows, submit_bulk, submit_online
from tests.integration.servers import RAM_DISK

IMPATIENT = {"STEP_TIMEOUT_S": "2", "DEAF_AFTER_S": "5"}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One worker, that dies again and again."""
    with (
        tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder,
        running(Path(folder), Parts(), **IMPATIENT) as service,
    ):
        yield service


def dead(service: Service) -> dict[str, Worker]:
    """Those whose end somebody saw, by id."""
    with service.store.snapshot() as tx:
        return {worker.id: worker for worker in tx.workers.list() if worker.ended_cause is not None}


def holders(service: Service) -> set[str]:
    """The workers with a lease, the dead ones included."""
    with service.store.snapshot() as tx:
        return {worker.id for worker in tx.workers.list() if tx.leases.of_worker(worker.id, 10)}


@pytest.mark.parametrize(
    ("prompt", "cause", "said"),
    [
        ("!raise", DeathCause.ENGINE_DIED, "engine died"),
        ("!eat-memory", DeathCause.ENGINE_DIED, "MemoryError"),
        ("!hang", DeathCause.STUCK_STEP, "has not ended"),
        ("!abort", DeathCause.ABORTED, "Fatal Python error"),
        ("!exit 137", DeathCause.OUT_OF_MEMORY, "exited with 137"),
    ],
)
def test_an_engine_that_fails_takes_its_process_along_and_the_other_work_goes_on(
    service, prompt, cause, said
):
    service.wait_until_ready()
    known = dead(service).keys()
    rows = submit_bulk(service, some_rows(30, step_ms=20))
    wait_for("a shard is held", lambda: holders(service))

    # Tried once, it ends as failed; what else the worker held is run again.
    submit_online(service, Row("bad", prompt), retry_on_interrupt=False)
    wait_for("the worker has died", lambda: dead(service).keys() - known)

    (died,) = [worker for id, worker in dead(service).items() if id not in known]
    assert died.ended_cause is cause
    assert died.id not in holders(service)
    oracle.quiesce(service, [rows])
    oracle.check(service, [rows], Limits(attempts_max=2))
    assert said in service.log("worker-1")


def test_a_worker_ended_by_a_fault_in_its_own_code_is_told_from_one_that_was_killed(service):
    for number, cause in ((signal.SIGSEGV, DeathCause.SIGNAL), (signal.SIGKILL, DeathCause.KILLED)):
        service.wait_until_ready()
        known = dead(service).keys()
        service.kill("worker-1", number)
        wait_for("its death is known", lambda known=known: dead(service).keys() - known)
        assert [worker.ended_cause for id, worker in dead(service).items() if id not in known] == [cause]


def test_a_consumer_that_hears_nothing_is_replaced(service_of):
    """Redis answers everybody, and takes messages off its lists; those that should arrive here do not."""
    service = service_of(Parts(proxies=frozenset({"redis"})), **IMPATIENT)
    service.proxy["redis"].set(Swallow(b"nightshift.online"))

    jobs = [submit_online(service, row) for row in some_rows(12)]
    wait_for("the worker has left", lambda: dead(service))
    service.proxy["redis"].heal()

    assert [worker.ended_cause for worker in dead(service).values()] == [DeathCause.DEAF]
    oracle.quiesce(service, jobs)
    assert oracle.check(service, jobs).attempts_most == 1, "whoever is deaf hands back what it has"
