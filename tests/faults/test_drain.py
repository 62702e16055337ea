"""Workers that are told to go: everything goes back, nothing is charged, and it does not take long."""

import signal
import time

import pytest

from nightshift.fleet import DeathCause
from nightshift.store import Store
from tests.faults import oracle
from tests.faults.processes import wait_for
from tests.faults.proxy import Blackhole
from tests.faults.service import Parts, Service
from tests.faults.workload import some_rows, submit_bulk, submit_online


def leases(store: Store) -> int:
    with store.snapshot() as tx:
        return sum(len(tx.leases.of_worker(worker.id, 1000)) for worker in tx.workers.list())


@pytest.mark.parametrize("is_redis_away", [False, True])
def test_a_worker_under_full_load_hands_everything_back_and_exits_with_0(service_of, is_redis_away):
    service = service_of()
    jobs = [submit_bulk(service, some_rows(60, step_ms=20, tokens=(50, 80)))]
    jobs += [submit_online(service, row) for row in some_rows(20, seed=1, step_ms=20, tokens=(150, 900))]
    wait_for("it has all it can take", lambda: leases(service.store) >= 10)
    if is_redis_away:
        service.redis.kill()

    began_s = time.monotonic()
    assert service.stop("worker-1") == 0
    print(f"drained in {time.monotonic() - began_s:.1f} s, Redis {'away' if is_redis_away else 'there'}")

    with service.store.snapshot() as tx:
        (gone,) = tx.workers.list()
    assert gone.ended_cause is DeathCause.DRAINED
    assert leases(service.store) == 0
    if is_redis_away:
        service.redis.start()
    service.start("worker-1")
    oracle.quiesce(service, jobs)
    assert oracle.check(service, jobs).attempts_most == 1, "leaving is no attempt"


def test_a_shard_whose_upload_hangs_goes_back_without_it(service_of):
    parts = Parts(objects="moto", proxies=frozenset({"s3"}))
    service = service_of(parts, BULK_DRAIN_S="1", SEGMENT_INTERVAL_S="0.1")
    job = submit_bulk(service, some_rows(40, step_ms=20, tokens=(40, 60)))
    wait_for("shards are held", lambda: leases(service.store))
    service.proxy["s3"].set(Blackhole())

    service.kill("worker-1", signal.SIGTERM)
    wait_for("they are back", lambda: leases(service.store) == 0)

    service.proxy["s3"].heal()
    oracle.quiesce(service, [job])
    assert oracle.check(service, [job]).attempts_most == 1


def test_the_operator_drains_a_worker(service_of):
    service: Service = service_of(Parts(workers=2))
    job = submit_bulk(service, some_rows(40, step_ms=20, tokens=(40, 60)))
    wait_for("shards are held", lambda: leases(service.store))
    with service.store.transaction() as tx:
        drained = next(worker for worker in tx.workers.list() if tx.leases.of_worker(worker.id, 1))
        assert tx.workers.request_drain(drained.id, tx.now())

    wait_for("it has gone", lambda: ended(service, drained.id))

    assert ended(service, drained.id) is DeathCause.DRAINED
    wait_for("its supervisor has ended, too", lambda: service.deaths)
    assert service.deaths[0].returncode == 0
    oracle.quiesce(service, [job])
    assert oracle.check(service, [job]).attempts_most == 1


def ended(service: Service, worker_id: str) -> DeathCause | None:
    with service.store.snapshot() as tx:
        return next(worker.ended_cause for worker in tx.workers.list() if worker.id == worker_id)
