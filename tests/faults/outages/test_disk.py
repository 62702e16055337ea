"""The disk that everything lies on is full: the database, the objects, the outputs, the logs and what is
being uploaded. New work is refused whole, what runs waits for room, and no process ends.
"""

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from nightshift.jobs import Face
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import BulkJob, Row, some_rows, submit_bulk
from tests.faults.kit.disk import Disk, small_disk
from tests.faults.kit.launch import running
from tests.faults.kit.service import Service
from tests.helpers.waiting import wait_for

LEASE_S = 3
SPOOLED = b"x" * 2 * 1024 * 1024  # more of a file than the API keeps in memory while it is uploaded


@pytest.fixture
def disk_and_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Disk, Service]]:
    """A service of which everything lies on one small disk."""
    services: list[Service] = []

    def pids() -> list[int]:
        (service,) = services
        return [pid for role in roles(service) for pid in service.pids(role)]

    tempfile.gettempdir()  # known from now on: this process keeps its own
    with small_disk(pids) as disk:
        monkeypatch.setenv("TMPDIR", str(disk.folder))
        # The engine's own notes would find the disk full, too.
        with running(disk.folder, LEASE_TTL_S=str(LEASE_S), LEASE_TRUST_S="2", FAKE_STAMPS="") as service:
            services.append(service)
            yield disk, service


def roles(service: Service) -> list[str]:
    return [*service.kept, "machine-1"]


def test_a_full_disk_refuses_new_work_whole_and_loses_nothing_that_runs(
    disk_and_service: tuple[Disk, Service],
) -> None:
    disk, service = disk_and_service
    alive = {role: service.pid(role) for role in roles(service)}
    job = submit_bulk(service, some_rows(120, step_ms=40))
    wait_for("rows are done", lambda: succeeded(service, job) > 0)

    with service.http() as http:
        http.post(**ASKED["large upload"]).raise_for_status()
        disk.fill()
        full_at = service.store.now()
        refusals = {what: until_refused(http, ask) for what, ask in ASKED.items()}
        assert http.get("/healthz").status_code == httpx.codes.OK
    had = succeeded(service, job)
    longer_than_a_lease = full_at + timedelta(seconds=LEASE_S)
    wait_for("it has been full for that long", lambda: service.store.now() > longer_than_a_lease)
    assert had <= succeeded(service, job) < len(job.rows)
    disk.make_room()

    for what, answer in refusals.items():
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (503, "server_error"), f"{what}: {answer.text}"
        assert int(answer.headers["retry-after"]) > 0
    jobs = [job, submit_bulk(service, some_rows(10, seed=1), face=Face.OPENAI)]
    oracle.judge(service, jobs, Limits(attempts_max=5))
    assert {role: service.pid(role) for role in roles(service)} == alive
    assert service.exits == []
    assert_nothing_is_half_accepted(service)


def succeeded(service: Service, job: BulkJob) -> int:
    return service.job(job.id).counts.succeeded


def until_refused(http: httpx.Client, ask: dict[str, Any]) -> httpx.Response:
    """Requests are accepted while some file still has room in its last page, and then no more."""
    answers: list[httpx.Response] = []

    def is_refused() -> bool:
        answers.append(http.post(timeout=60, **ask))
        return not answers[-1].is_success

    wait_for(f"{ask['url']} is refused", is_refused)
    return answers[-1]


BODY = Row("one", "hello").body("fake")
ASKED: dict[str, dict[str, Any]] = {
    "online job": {"url": "/v1/jobs", "json": {"endpoint": "chat", "body": BODY}},
    "upload": {"url": "/v1/files", "files": {"file": ("a", b"x" * 70_000)}, "data": {"purpose": "user_data"}},
    "large upload": {"url": "/v1/files", "files": {"file": ("b", SPOOLED)}, "data": {"purpose": "user_data"}},
}


def assert_nothing_is_half_accepted(service: Service) -> None:
    """Every job there is has ended well, and every file there is can be read."""
    with service.http() as http:

        def statuses() -> set[str]:
            jobs = http.get("/v1/jobs", params={"limit": 100}).json()["data"]
            return {job["status"] for job in jobs}

        wait_for("every job that was accepted succeeds", lambda: statuses() == {"succeeded"})
        for file in http.get("/v1/files").json()["data"]:
            content = http.get(f"/v1/files/{file['id']}/content").content
            assert len(content) == file["bytes"]
