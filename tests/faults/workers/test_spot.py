"""A machine that is taken away with notice: what its worker has goes on elsewhere, and nothing is redone."""

import signal
from collections.abc import Iterator

import pytest

from nightshift.fleet.workers import ExitCause, Worker, WorkerState
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import Row, some_rows, submit_bulk, submit_online
from tests.faults.kit import metadata
from tests.faults.kit.metadata import Metadata, Trouble
from tests.faults.kit.processes import send
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import WAIT_MAX_S, wait_for


@pytest.fixture
def cloud() -> Iterator[Metadata]:
    with metadata.serving() as served:
        yield served


def long_rows(count: int, *, seed: int = 0) -> list[Row]:
    return some_rows(count, seed=seed, step_ms=20, tokens=(60, 90))


def on_spot(provider: str, cloud: Metadata) -> dict[str, str]:
    return {"CAPACITY": "spot", "SPOT_PROVIDER": provider, "SPOT_METADATA_URL": cloud.url}


def workers(service: Service, capacity: str) -> list[Worker]:
    """Workers on machines of this kind, the oldest first."""
    return [worker for worker in reversed(service.workers().values()) if worker.capacity == capacity]


def a_successor_waits(service: Service) -> bool:
    """Whether the worker on the spot machine was drained, and the next one there is not even started."""
    seen = [(worker.ended_cause, worker.state) for worker in workers(service, "spot")]
    return seen == [(ExitCause.DRAINED, WorkerState.STOPPED), (None, WorkerState.DRAINING)]


def ended_cause(service: Service, worker: Worker) -> ExitCause | None:
    return service.workers()[worker.id].ended_cause


def under_way(service: Service, worker: Worker) -> set[str]:
    """The jobs of which it has told that it has tokens which no checkpoint has."""
    return {lease.job_id for lease in service.leases(worker.id) if lease.tokens_in_flight}


@pytest.mark.exhaustive
def test_what_a_spot_machine_has_goes_on_elsewhere_as_its_jobs_allow(service_of, cloud):
    """Full load on a spot machine and on one that stays. The notice stands, is repeated, and is withdrawn."""
    cloud.trouble = Trouble.HANGS  # a worker starts all the same
    parts = Parts(workers=2, of_role={"worker-1": on_spot("gcp", cloud)})
    service = service_of(parts)
    cloud.trouble = None
    (first,) = workers(service, "spot")
    cheaply = submit_bulk(service, long_rows(48), capacity="spot")
    anywhere = submit_bulk(service, long_rows(24, seed=1), capacity="any")
    safely = submit_bulk(service, long_rows(12, seed=2), capacity="on_demand")
    online = [submit_online(service, row) for row in some_rows(6, seed=3, step_ms=20, tokens=(50, 150))]
    wait_for("rows are under way", lambda: cheaply.id in under_way(service, first))

    cloud.is_interrupted = True
    wait_for("it drains", lambda: workers(service, "spot")[0].state is not WorkerState.READY)
    send(first.pid, signal.SIGTERM)  # a cloud sends SIGTERM besides its notice
    wait_for("it has gone", lambda: workers(service, "spot")[0].ended_cause)
    assert workers(service, "spot")[0].ended_cause is ExitCause.DRAINED
    assert service.leases(first.id) == []
    assert any(shard.carry_over_key for shard in service.shards(cheaply.id)), (
        "its rows left with their tokens"
    )
    wait_for("its successor waits", lambda: a_successor_waits(service))
    elsewhere = [anywhere, safely, *online]
    oracle.wait_for_ends(service, elsewhere)
    assert not service.job(cheaply.id).state.is_terminal, "it wants a spot machine"

    cloud.is_interrupted = False
    verdict = oracle.judge(service, [cheaply, *elsewhere])
    assert verdict.attempts_most == 1, "an interruption is no attempt"
    assert {service.job(job.id).tokens_redone for job in (anywhere, cheaply, safely)} == {0}
    assert len(workers(service, "spot")) == 2, "the successor went on, and needed no other"


def test_a_machine_that_may_be_taken_is_left_for_another_like_it_and_then_is_taken(service_of, cloud):
    """AWS: a recommendation to rebalance first, the interruption later, on a worker that has gone by then."""
    stays = {"CAPACITY": "spot"}
    service = service_of(Parts(workers=3, of_role={"worker-1": on_spot("aws", cloud), "worker-3": stays}))
    service.stop("worker-3")
    (first,) = [worker for worker in workers(service, "spot") if worker.ended_cause is None]
    cloud.is_rebalanced = True
    cloud.wait_for_asks(3, WAIT_MAX_S)  # for interruptions and recommendations in turn: it has heard
    cheaply = submit_bulk(service, some_rows(4), capacity="spot")
    oracle.wait_for_ends(service, [cheaply])  # no other worker may run it

    job = submit_bulk(service, long_rows(60))
    service.start("worker-3")
    wait_for("it has left", lambda: ended_cause(service, first))
    cloud.is_interrupted = True

    assert oracle.judge(service, [cheaply, job]).attempts_most == 1
    assert service.job(job.id).tokens_redone == 0
    assert ended_cause(service, first) is ExitCause.DRAINED
