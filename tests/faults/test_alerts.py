"""Alerts fire when what they are for is done to a real service, and clear when it is over.

The rules are the ones that are deployed, sixty times faster: minutes in ranges and waits are seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.chaos import oracle
from tests.faults.chaos.workload import Row, some_rows, submit_bulk, submit_online
from tests.faults.conftest import ServiceOf
from tests.faults.kit.disk import Tmpfs, small_disk
from tests.faults.kit.launch import running
from tests.faults.kit.outages import REDIS
from tests.faults.kit.service import Parts, Service
from tests.helpers.prometheus import RULES, Prometheus, minutes_as_seconds, prometheus
from tests.helpers.waiting import wait_for
from tests.integration.objectstore.s3_faults import ALWAYS, Unreachable
from tests.integration.servers import free_port

SEED = 17
LATE_ROWS = 4000  # of a second each, sixteen at a time: more than a minute has
KILLS = 6  # in a quarter of an hour, which takes 15 s here


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {"nightshift-scheduler": free_port(), "nightshift-worker": free_port()}


@pytest.fixture(scope="module")
def service(module_service_of: ServiceOf, ports: dict[str, int]) -> Service:
    return module_service_of(
        SCHEDULER_METRICS_PORT=str(ports["nightshift-scheduler"]),
        WORKER_METRICS_PORT=str(ports["nightshift-worker"]),
    )


@pytest.fixture(scope="module")
def monitoring(
    service: Service, ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    with monitored(service, ports, tmp_path_factory.mktemp("prometheus")) as scraping:
        yield scraping


@contextmanager
def monitored(service: Service, ports: dict[str, int], folder: Path) -> Iterator[Prometheus]:
    ports = ports | {"nightshift-api": int(service.base_url.rpartition(":")[2])}
    with prometheus(folder, ports, minutes_as_seconds(RULES.read_text())) as scraping:
        wait_for("it has scraped every process", lambda: scraping.query("sum(up)") == [len(ports)])
        yield scraping


def fires(monitoring: Prometheus, name: str) -> None:
    """Waits for the alert. Templates that cannot be filled in would say `<error …>` or `<no value>`."""
    notes = monitoring.wait_until_firing(name)
    assert not [text for text in notes.values() if "<" in text or "{{" in text]


@pytest.mark.exhaustive
def test_redis_is_away(service: Service, monitoring: Prometheus) -> None:
    with REDIS["Redis is killed, and comes back as it was"](service):
        job = submit_online(service, Row("one", "hello"))
        fires(monitoring, "NightshiftRedisAway")
    monitoring.wait_until_clear("NightshiftRedisAway")
    oracle.quiesce(service, [job])


def test_no_scheduler_leads(service: Service, monitoring: Prometheus) -> None:
    service.stop("scheduler-1")
    fires(monitoring, "NightshiftNoLeader")
    service.start("scheduler-1")
    monitoring.wait_until_clear("NightshiftNoLeader")


@pytest.mark.exhaustive
def test_a_worker_is_killed_again_and_again(service: Service, monitoring: Prometheus) -> None:
    for _ in range(KILLS):
        service.wait_until_ready()
        service.kill_and_wait("worker-1")
    fires(monitoring, "NightshiftWorkersKilled")
    monitoring.wait_until_clear("NightshiftWorkersKilled")


@pytest.mark.exhaustive
def test_a_row_crashes_its_workers_until_it_is_a_dead_letter(
    service: Service, monitoring: Prometheus
) -> None:
    job = submit_bulk(service, [Row("bad", "!abort", ends_as="errored"), Row("good", "hello")])
    fires(monitoring, "NightshiftWorkersCrash")
    fires(monitoring, "NightshiftDeadLetters")
    oracle.quiesce(service, [job])
    monitoring.wait_until_clear("NightshiftWorkersCrash")
    monitoring.wait_until_clear("NightshiftDeadLetters")


@pytest.mark.exhaustive
def test_a_job_will_miss_its_deadline(service: Service, monitoring: Prometheus) -> None:
    rows = some_rows(LATE_ROWS, step_ms=50, tokens=(20, 20))
    job = submit_bulk(service, rows, completion_window="1m")
    fires(monitoring, "NightshiftDeadlineAtRisk")
    with service.http() as http:
        http.post(f"/v1/jobs/{job.id}/cancel").raise_for_status()
    monitoring.wait_until_clear("NightshiftDeadlineAtRisk")


@pytest.mark.exhaustive
def test_an_engine_waits_for_the_object_store(service_of: ServiceOf, tmp_path: Path) -> None:
    port = free_port()
    parts = Parts(objects="moto", s3_faults_seed=SEED)
    service = service_of(parts, WORKER_METRICS_PORT=str(port))
    assert service.s3_front is not None
    with monitored(service, {"nightshift-worker": port}, tmp_path) as monitoring:
        service.s3_front.set("PUT", Unreachable(), ALWAYS, path="/segments/")
        job = submit_bulk(service, some_rows(10))
        fires(monitoring, "NightshiftEngineStarved")
        service.s3_front.heal()
        oracle.quiesce(service, [job])
        monitoring.wait_until_clear("NightshiftEngineStarved")


@pytest.mark.exhaustive
def test_the_disk_is_full(tmp_path: Path) -> None:
    services: list[Service] = []

    def pids() -> list[int]:
        return [pid for service in services for role in service.kept for pid in service.pids(role)]

    with small_disk(pids) as disk:
        if not isinstance(disk, Tmpfs):
            pytest.skip("no file system can be mounted here, and none is really full")
        with running(disk.folder, FAKE_STAMPS="") as service:
            services.append(service)
            with monitored(service, {}, tmp_path / "prometheus") as monitoring:
                disk.fill()
                fires(monitoring, "NightshiftDiskFull")
                disk.make_room()
                monitoring.wait_until_clear("NightshiftDiskFull")
