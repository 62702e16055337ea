"""Workers that are alive and do nothing, or die of what they run: each leaves with a reason, what it held is
given back at once, and it is started again."""

import signal
from collections.abc import Collection

import pytest

from nightshift.fleet.workers import ExitCause, Worker
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import Row, some_rows, submit_bulk, submit_online
from tests.faults.conftest import ServiceOf
from tests.faults.kit.control_group import short_of_memory
from tests.faults.kit.proxy import Swallow
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import wait_for

IMPATIENT = {"STEP_TIMEOUT_S": "6", "DEAF_AFTER_S": "5"}  # a busy machine takes seconds to fill memory
MEMORY_BYTES = 512 * 1024 * 1024  # a worker takes a third of it


@pytest.fixture(scope="module")
def shared(module_service_of: ServiceOf) -> Service:
    """One worker, that dies again and again."""
    parts = Parts(proxies=frozenset({"redis"}))
    return module_service_of(parts, **IMPATIENT)


def dead(service: Service) -> dict[str, Worker]:
    """Workers whose end is recorded, by id."""
    return {id: worker for id, worker in service.workers().items() if worker.ended_cause is not None}


def the_next_to_die(service: Service, known: Collection[str]) -> Worker:
    """Waited for."""
    wait_for("a worker has died", lambda: dead(service).keys() - known)
    (died,) = [worker for id, worker in dead(service).items() if id not in known]
    return died


@pytest.mark.parametrize(
    ("prompt", "cause", "said"),
    [
        pytest.param("!raise", ExitCause.ENGINE_DIED, "engine died", marks=pytest.mark.exhaustive),
        pytest.param("!eat-memory", ExitCause.ENGINE_DIED, "MemoryError", marks=pytest.mark.exhaustive),
        ("!hang", ExitCause.STUCK_STEP, "has not ended"),
        ("!abort", ExitCause.ABORTED, "Fatal Python error"),
        pytest.param("!exit 137", ExitCause.OUT_OF_MEMORY, "exited with 137", marks=pytest.mark.exhaustive),
        pytest.param("!exit 71", ExitCause.UNREQUESTED_DRAIN, "exited with 71", marks=pytest.mark.exhaustive),
    ],
)
def test_an_engine_that_fails_takes_its_process_along_and_the_other_work_goes_on(
    service, prompt, cause, said
):
    known = dead(service).keys()
    rows = submit_bulk(service, some_rows(24, step_ms=20))
    wait_for("a shard is held", service.leases)

    # Tried once, it ends as failed; what else the worker held is run again.
    submit_online(service, Row("bad", prompt), retry_on_interrupt=False)

    died = the_next_to_die(service, known)
    assert died.ended_cause is cause
    assert service.leases(died.id) == []
    oracle.judge(service, [rows], Limits(attempts_max=2))
    assert said in service.log("worker-1")


@pytest.mark.exhaustive  # how it is told is read in the supervisor's own tests
def test_a_worker_that_the_kernel_ends_for_want_of_memory_is_told_from_one_that_was_killed(service_of):
    """The kernel counts what it has killed in a control group; no other process can know."""
    # A program: what is forked is in the control group of the process that forks.
    service = service_of(Parts(programs=frozenset({"worker-1"})), **IMPATIENT)
    service.stop("worker-1")
    with short_of_memory(MEMORY_BYTES) as group:
        with group.entered():
            service.start("worker-1")
        service.wait_until_ready()
        known = dead(service).keys()
        submit_online(service, Row("bad", "!eat-memory 1024"), retry_on_interrupt=False)
        died = the_next_to_die(service, known)
        assert died.ended_cause is ExitCause.OUT_OF_MEMORY

        service.wait_until_ready()
        known = dead(service).keys()
        service.kill("worker-1", signal.SIGKILL)
        assert the_next_to_die(service, known).ended_cause is ExitCause.KILLED
        service.stop("worker-1")


def test_a_worker_ended_by_a_fault_in_its_own_code_says_where_it_was(service):
    known = dead(service).keys()
    service.kill("worker-1", signal.SIGSEGV)

    assert the_next_to_die(service, known).ended_cause is ExitCause.SIGNAL
    assert "Segmentation fault" in service.log("worker-1")


def test_a_consumer_that_hears_nothing_is_replaced(service):
    """Redis answers every client, and takes messages off its lists; those that should arrive here do not."""
    known = dead(service).keys()
    service.proxy["redis"].set(Swallow(b"nightshift.online"))

    jobs = [submit_online(service, row) for row in some_rows(12)]
    died = the_next_to_die(service, known)
    service.proxy["redis"].heal()

    assert died.ended_cause is ExitCause.QUEUE_CONNECTION_LOST
    assert oracle.judge(service, jobs).attempts_most == 1, "the replaced worker hands back what it has"
