"""A process that kills itself between a record and the bytes it names loses no file and leaves nothing for
good: uploads, what is deleted, what has had its time. And the events of webhook endpoints are still sent.

As in `test_jobs.py`; the counters of what the tenant holds are compared with a recount after each death.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Table, func, select, update

from nightshift.jobs import Face, JobState
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import BulkJob, some_rows, submit_bulk
from tests.faults.kit.service import Parts, Service
from tests.helpers.receiver import Receiver, receiver, says
from tests.helpers.waiting import wait_for

A_YEAR = timedelta(days=365)
CONTENT = b"what was sent\n" * 1000
PARTS = Parts(database="postgresql", schedulers=2)
OF_JOBS = (tables.job, tables.shard, tables.segment, tables.event, tables.delivery)


@pytest.fixture(scope="module")
def service(module_service_of) -> Service:
    """One for all deaths: it has to survive them one after another, too."""
    return module_service_of(PARTS, RETENTION_INTERVAL_S="0.5", ORPHAN_AGE_S="3600")


@pytest.fixture(autouse=True)
def all_was_reached_and_counted(service: Service) -> Iterator[None]:
    yield
    assert service.disarm() == [], "no process reached it"
    oracle.check_counters(service)


def send_until_death(service: Service, point: str, method: str, path: str, **request: Any) -> None:
    """The API dies over a request, which may have been answered before. Returns when it is back."""
    service.arm(point)
    with service.http() as http, suppress(httpx.TransportError):
        http.request(method, path, **request)
    service.wait_for_death(point)
    oracle.check_counters(service)
    service.wait_until_ready()


def send(service: Service, method: str, path: str, **request: Any) -> dict[str, Any]:
    with service.http() as http:
        return dict(http.request(method, path, **request).raise_for_status().json())


def content(service: Service, file_id: str) -> bytes:
    with service.http() as http:
        return http.get(f"/v1/files/{file_id}/content").raise_for_status().content


def upload(data: bytes = CONTENT) -> dict[str, Any]:
    return {"files": {"file": ("x.bin", data)}, "data": {"purpose": "user_data"}}


def part() -> dict[str, Any]:
    return {"files": {"data": ("x.bin", CONTENT)}}


def upload_in_two_parts(service: Service) -> tuple[str, list[str]]:
    new = {"purpose": "user_data", "filename": "x.bin", "bytes": 2 * len(CONTENT), "mime_type": "text/plain"}
    id = send(service, "POST", "/v1/uploads", json=new)["id"]
    return id, [send(service, "POST", f"/v1/uploads/{id}/parts", **part())["id"] for _ in range(2)]


def keys(service: Service, prefix: str) -> set[str]:
    return {info.key for info in service.objects.list(prefix)}


def stored(service: Service) -> tuple[int, int]:
    """Files and bytes of the tenant, as counted."""
    with service.store.snapshot() as tx:
        held = tx.holdings.total(service.tenant_id)
    return held.stored_files, held.stored_bytes


def let_retention_have(service: Service, orphans: set[str]) -> None:
    """The time that unrecorded bytes are left alone is over; waits until just these are gone."""
    kept = keys(service, "files/") | keys(service, "uploads/")
    for key in kept:
        os.utime(service.folder / "data" / "objects" / key, (0, 0))
    wait_for("orphans are gone", lambda: not orphans & (keys(service, "files/") | keys(service, "uploads/")))
    assert keys(service, "files/") | keys(service, "uploads/") == kept - orphans


# -- the API: bytes and their record ------------------------------------------------------------------------


def test_an_api_that_dies_before_a_file_is_on_record_leaves_bytes_that_retention_deletes(service):
    before, held = keys(service, "files/"), stored(service)
    send_until_death(service, "api.bytes_stored", "POST", "/v1/files", **upload())
    orphans = keys(service, "files/") - before
    assert len(orphans) == 1
    assert stored(service) == held

    again = send(service, "POST", "/v1/files", **upload())
    let_retention_have(service, orphans)

    assert content(service, again["id"]) == CONTENT
    assert stored(service) == (held[0] + 1, held[1] + len(CONTENT))


def test_an_api_that_dies_before_a_part_is_on_record_has_the_part_sent_again(service):
    upload_id, part_ids = upload_in_two_parts(service)
    held, before = stored(service), keys(service, "uploads/")
    send_until_death(service, "api.bytes_stored", "POST", f"/v1/uploads/{upload_id}/parts", **part())
    orphans = keys(service, "uploads/") - before
    assert len(orphans) == 1
    assert stored(service) == held

    last = send(service, "POST", f"/v1/uploads/{upload_id}/parts", **part())["id"]
    let_retention_have(service, orphans)
    whole = {"part_ids": [part_ids[0], last]}
    file = send(service, "POST", f"/v1/uploads/{upload_id}/complete", json=whole)["file"]

    assert content(service, file["id"]) == 2 * CONTENT


@pytest.mark.parametrize(
    ("point", "is_completed"),
    [pytest.param("api.bytes_stored", False, marks=pytest.mark.exhaustive), ("api.parts_forgotten", True)],
)
def test_a_completion_that_dies_is_repeated_and_makes_one_file(service, point, is_completed):
    upload_id, part_ids = upload_in_two_parts(service)
    held, before = stored(service), keys(service, "files/")
    whole = {"part_ids": part_ids}
    send_until_death(service, point, "POST", f"/v1/uploads/{upload_id}/complete", json=whole)
    assert stored(service) == ((held[0] + 1, held[1]) if is_completed else held)
    parts = {f"uploads/{service.tenant_id}/{upload_id}/{id}" for id in part_ids}
    assert keys(service, f"uploads/{service.tenant_id}/{upload_id}/") == parts

    again = send(service, "POST", f"/v1/uploads/{upload_id}/complete", json=whole)
    if is_completed:
        let_retention_have(service, parts)

    assert again["status"] == "completed"
    assert content(service, again["file"]["id"]) == 2 * CONTENT
    assert stored(service) == (held[0] + 1, held[1])
    assert keys(service, "files/") - before == {f"files/{service.tenant_id}/{again['file']['id']}"}
    wait_for("no part is left", lambda: not keys(service, f"uploads/{service.tenant_id}/{upload_id}/"))


def test_an_api_that_dies_over_a_deleted_file_leaves_bytes_that_retention_deletes(service):
    held = stored(service)
    file_id = send(service, "POST", "/v1/files", **upload())["id"]
    send_until_death(service, "api.file_forgotten", "DELETE", f"/v1/files/{file_id}")
    assert stored(service) == held

    let_retention_have(service, {f"files/{service.tenant_id}/{file_id}"})


# -- the scheduler: records and what they say is to be deleted ----------------------------------------------


def another_leads_after(service: Service, point: str, act: Callable[[], object]) -> None:
    service.arm(point)
    act()
    service.wait_for_death(point)
    oracle.check_counters(service)
    service.let_another_lead()


def ended_job(service: Service, face: Face = Face.NATIVE) -> BulkJob:
    job = submit_bulk(service, some_rows(60), face=face)
    oracle.quiesce(service, [job])
    return job


def rows_of(service: Service, job: BulkJob) -> dict[str, int]:
    """Rows that tables still have of a job."""
    with service.database.read() as connection:

        def count(table: Table) -> int:
            of_job = table.c.id if table is tables.job else table.c.job_id
            return int(connection.execute(select(func.count()).where(of_job == job.id)).scalar_one())

        counts = {table.name: count(table) for table in (*OF_JOBS, tables.deletion)}
    return {name: rows for name, rows in counts.items() if rows}


def objects_of(service: Service, job: BulkJob) -> set[str]:
    kinds = ("segments", "results", "assembly")
    return {key for kind in kinds for key in keys(service, f"{kind}/{service.tenant_id}/{job.id}/")}


@pytest.mark.parametrize(
    ("point", "face"),
    [
        pytest.param("scheduler.rows_deleted", Face.NATIVE, marks=pytest.mark.exhaustive),
        ("scheduler.bytes_deleted", Face.OPENAI),
    ],
)
def test_a_scheduler_that_dies_over_a_deleted_job_leaves_it_to_the_next_which_leaves_nothing(
    service, point, face
):
    other, job = ended_job(service, face), ended_job(service, face)
    assert objects_of(service, job)

    another_leads_after(service, point, lambda: send(service, "DELETE", f"/v1/jobs/{job.id}"))

    wait_for("nothing is left", lambda: not rows_of(service, job) and not objects_of(service, job))
    oracle.check(service, [other])


@pytest.mark.exhaustive  # after "aged" they are deleted as those above
def test_a_scheduler_that_dies_over_jobs_that_had_their_time_leaves_them_to_the_next(service):
    other, job = ended_job(service), ended_job(service)
    long_ago = service.store.now() - A_YEAR

    def age() -> None:
        with service.database.write() as connection:
            told = update(tables.delivery).where(tables.delivery.c.job_id == job.id)
            connection.execute(told.values(delivered_at=long_ago))
            old = update(tables.job).where(tables.job.c.id == job.id)
            connection.execute(old.values(finished_at=long_ago))

    another_leads_after(service, "scheduler.aged", age)

    wait_for("nothing is left", lambda: not rows_of(service, job) and not objects_of(service, job))
    oracle.check(service, [other])


def test_a_scheduler_that_dies_over_expired_files_leaves_their_bytes_to_retention(service):
    held = stored(service)
    file_id = send(service, "POST", "/v1/files", **upload())["id"]

    def expire() -> None:
        with service.database.write() as connection:
            expired = update(tables.file).where(tables.file.c.id == file_id)
            connection.execute(expired.values(expires_at=tables.file.c.created_at))

    another_leads_after(service, "scheduler.files_forgotten", expire)
    assert stored(service) == held

    let_retention_have(service, {f"files/{service.tenant_id}/{file_id}"})


# -- webhook endpoints --------------------------------------------------------------------------------------


@pytest.fixture
def endpoint(service: Service) -> Iterator[Receiver]:
    """The receiver of a registered endpoint that asks for the end of jobs."""
    with receiver(says(200)) as hooks:
        new = {"name": "ends", "url": hooks.numeric_url, "event_types": ["job.succeeded"]}
        id = send(service, "POST", "/v1/webhook_endpoints", json=new)["id"]
        yield hooks
        send(service, "DELETE", f"/v1/webhook_endpoints/{id}")


@pytest.mark.parametrize(
    ("point", "times"),
    [pytest.param("scheduler.job_ended", 1, marks=pytest.mark.exhaustive), ("scheduler.webhook_sent", 2)],
)
def test_an_event_of_an_endpoint_whose_sender_dies_is_sent_under_the_same_id(service, endpoint, point, times):
    def submit() -> None:
        data = b'{"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": %s}\n'
        body = b'{"model": "fake", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}'
        places = {
            "input": service.put_file("in/hooked.jsonl", data % body),
            "output": service.location("out/h/"),
        }
        ids.append(send(service, "POST", "/v1/jobs", json={"endpoint": "chat", **places})["id"])

    ids: list[str] = []
    another_leads_after(service, point, submit)  # it has no webhook of its own
    wait_for("the job has ended", lambda: service.job(ids[0]).state is JobState.SUCCEEDED)
    service.let_webhooks_be_due()
    wait_for("it was told", lambda: delivery_of(service, ids[0]).state == DeliveryState.DELIVERED)

    delivery = delivery_of(service, ids[0])
    assert delivery.attempts == 1
    assert [request.headers["webhook-id"] for request in endpoint.requests] == [delivery.event_id] * times


def delivery_of(service: Service, job_id: str) -> Any:
    with service.database.read() as connection:
        wanted = select(tables.delivery).where(tables.delivery.c.job_id == job_id)
        return connection.execute(wanted).one()
