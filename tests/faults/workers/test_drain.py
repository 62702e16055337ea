"""Workers that are told to go: everything goes back, nothing is charged, and it does not take long."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightshift.fleet.workers import ExitCause, Worker, WorkerState
from nightshift.jobs import Shard, ShardState
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import Row, some_rows, submit_bulk, submit_online
from tests.faults.conftest import ServiceOf
from tests.faults.kit.processes import is_running, send
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import WAIT_MAX_S, wait_for


def long_rows(count: int) -> list[Row]:
    """A second or two each."""
    return some_rows(count, step_ms=20, tokens=(50, 80))


@pytest.fixture(scope="module")
def shared(module_service_of: ServiceOf, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """Two workers, whose models load for as long as the file `FAKE_LOADING` is there."""
    loading = tmp_path_factory.mktemp("models") / "loading"
    return module_service_of(Parts(workers=2), FAKE_LOADING=str(loading))


def role_of(service: Service, worker: Worker) -> str:
    return next(role for role in ("worker-1", "worker-2") if worker.pid in service.pids(role))


def a_holder(service: Service) -> Worker:
    """A worker with a lease; waited for."""

    def holders() -> list[Worker]:
        return [worker for id, worker in service.workers().items() if service.leases(id)]

    return wait_for("a worker holds a lease", holders)[0]


def who_makes_tokens(service: Service, except_id: str | None = None) -> Worker:
    """A worker that has told of tokens which no checkpoint has; waited for."""

    def makers() -> list[Worker]:
        others = [worker for id, worker in service.workers().items() if id != except_id]
        return [one for one in others if any(lease.tokens_in_flight for lease in service.leases(one.id))]

    return wait_for("a worker makes tokens", makers)[0]


def only_shard(service: Service, job_id: str) -> Shard:
    (shard,) = service.shards(job_id)
    return shard


@pytest.mark.parametrize(
    ("is_redis_away", "tokens"),
    [(False, (50, 350)), pytest.param(True, (10, 60), marks=pytest.mark.exhaustive)],
)
def test_a_worker_under_full_load_hands_everything_back_and_exits_with_0(service, is_redis_away, tokens):
    """Some online requests are too long for what time they get, or all of them end by themselves."""
    leaving = service.worker_of(service.pid("worker-1"))
    jobs = [submit_bulk(service, long_rows(60))]
    jobs += [submit_online(service, row) for row in some_rows(16, seed=1, step_ms=20, tokens=tokens)]
    wait_for("it has a lot", lambda: len(service.leases(leaving.id)) >= 2)
    if is_redis_away:
        service.redis.kill()

    began_s = time.monotonic()
    assert service.stop("worker-1") == 0
    print(f"drained in {time.monotonic() - began_s:.1f} s, Redis {'away' if is_redis_away else 'there'}")

    assert service.workers()[leaving.id].ended_cause is ExitCause.DRAINED
    assert service.leases(leaving.id) == []
    if is_redis_away:
        service.redis.start()
    service.start("worker-1")
    assert oracle.judge(service, jobs).attempts_most == 1, "leaving is no attempt"


def test_who_is_told_again_while_it_drains_leaves_as_it_is(service):
    """SIGTERM is sent until it is gone: the first second's are one, the next ends it."""
    job = submit_online(service, Row("long", "takes its time ms=20", max_tokens=250))
    holder = a_holder(service)

    wait_for("it has gone", lambda: not send(holder.pid, signal.SIGTERM))

    wait_for("its end is known", lambda: service.workers()[holder.id].ended_cause)
    assert service.workers()[holder.id].ended_cause is ExitCause.DRAIN_TOO_SLOW
    oracle.judge(service, [job], Limits(attempts_max=2))


def test_a_worker_that_still_loads_its_models_leaves_at_once(service):
    service.stop("worker-1")
    loading_file = Path(service.environment["NIGHTSHIFT_FAKE_LOADING"])
    loading_file.touch()
    try:
        service.start("worker-1")
        loading = [WorkerState.STARTING, True]
        wait_for(
            "it loads",
            lambda: loading in [[w.state, is_running(w.pid)] for w in service.workers().values()],
        )
        assert service.stop("worker-1") == 0
    finally:
        loading_file.unlink()
        service.start("worker-1")


def ask_to_drain(service: Service, worker: Worker) -> None:
    """As the operator does it."""
    command = (sys.executable, "-P", "-m", "nightshift.cli.main", "workers", "drain", worker.id)
    subprocess.run(command, env=dict(service.environment), check=True)


def test_the_operator_drains_a_worker(service):
    job = submit_bulk(service, long_rows(40))
    drained = a_holder(service)
    exits_before = len(service.exits)
    ask_to_drain(service, drained)

    wait_for("it has gone", lambda: service.workers()[drained.id].ended_cause)
    assert service.workers()[drained.id].ended_cause is ExitCause.DRAINED
    wait_for("its supervisor has ended, too", lambda: len(service.exits) > exits_before)
    assert service.exits[-1].returncode == 0
    assert oracle.judge(service, [job]).attempts_most == 1


@pytest.mark.exhaustive
def test_in_deterministic_mode_a_text_begun_here_and_ended_elsewhere_is_the_same(service_of):
    """Our own engine with the demo model: rows leave in the middle, go on on another worker, and on a third
    when that is killed. The others stand still until the first has handed back what it has.
    """
    slowly = {"ENGINE_MAX_NUM_SEQS": "4", "HEARTBEAT_S": "0.2", "SHARD_BYTES": "1000000"}
    service = service_of(Parts(engine="demo", workers=2), **slowly)
    sampling = {"temperature": 1.0, "seed": 7, "ignore_eos": True}
    job = submit_bulk(
        service, [Row(f"row-{n}", f"Tell me {n} stories", 200, sampling=sampling) for n in range(20)]
    )
    first = who_makes_tokens(service)
    others = [worker for worker in service.workers().values() if worker.id != first.id]
    for worker in others:
        send(worker.pid, signal.SIGSTOP)
    send(first.pid, signal.SIGTERM)
    wait_for("the rows are handed back", lambda: only_shard(service, job.id).state is ShardState.QUEUED)
    assert only_shard(service, job.id).carry_over_key is not None, "the rows left in the middle"
    for worker in others:
        send(worker.pid, signal.SIGCONT)

    second = who_makes_tokens(service, except_id=first.id)
    assert service.job(job.id).tokens_redone == 0, "who is told to go takes them along"
    assert send(second.pid, signal.SIGKILL)

    oracle.quiesce(service, [job], WAIT_MAX_S * service.parts.slower)
    oracle.check(service, [job], Limits(attempts_max=2))
    assert service.workers()[first.id].ended_cause is ExitCause.DRAINED
    assert service.workers()[second.id].ended_cause is ExitCause.KILLED
