"""Ended jobs and batches are deleted by their owner, once; what is deleted is found nowhere."""

from datetime import timedelta

import httpx
from sqlalchemy import update

from nightshift.jobs import JobState, OnlineClaim
from nightshift.lifecycle import transitions
from nightshift.store import tables
from tests.helpers.fakes import a_delivery
from tests.integration.api.asking import online
from tests.integration.api.fake_worker import FakeWorker
from tests.integration.api.openai.test_batches import create, move_to

WHOLE = (JobState.QUEUED, JobState.RUNNING, JobState.FINALIZING, JobState.SUCCEEDED)


def an_ended_job(http: httpx.Client, **headers: str) -> str:
    answer = http.post("/v1/jobs", json=online(), headers={"prefer": "wait=30", **headers})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_a_deleted_job_is_found_nowhere_and_deleted_once(http, worker, store):
    job_id = an_ended_job(http)
    with store.transaction() as tx:
        tx.deliveries.insert(a_delivery(tx.jobs.fetch(job_id)))

    answer = http.delete(f"/v1/jobs/{job_id}")

    assert (answer.status_code, answer.json()) == (200, {"id": job_id, "object": "job", "deleted": True})
    for path in ("", "/results", "/events"):
        assert http.get(f"/v1/jobs/{job_id}{path}").status_code == 404
    again = http.delete(f"/v1/jobs/{job_id}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")
    assert http.get("/v1/jobs").json()["data"] == []
    assert http.get("/v1/deliveries").json()["data"] == []
    assert http.get("/v1/jobs", params={"after": job_id}).status_code == 404
    assert [day["succeeded"] for day in http.get("/v1/usage").json()["data"]] == [1]


def test_a_key_is_forgotten_with_its_job(http, worker):
    first = an_ended_job(http, **{"idempotency-key": "nightly"})
    assert http.delete(f"/v1/jobs/{first}").status_code == 200

    assert an_ended_job(http, **{"idempotency-key": "nightly"}) != first


def test_a_job_that_has_not_ended_is_a_conflict(http, bulk):
    job_id = http.post("/v1/jobs", json=bulk).json()["id"]

    answer = http.delete(f"/v1/jobs/{job_id}")

    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert answer.json()["error"]["code"] == "job_not_ended"
    assert "status 'queued'" in answer.json()["error"]["message"]
    assert http.get(f"/v1/jobs/{job_id}").status_code == 200


def test_another_tenants_job_is_not_found_and_stays(http, worker, stranger):
    job_id = an_ended_job(http)

    assert http.delete(f"/v1/jobs/{job_id}", headers=stranger).status_code == 404
    assert http.delete(f"/v1/batches/{job_id.replace('job_', 'batch_')}").status_code == 404, "it is no batch"
    assert http.get(f"/v1/jobs/{job_id}").status_code == 200


def test_a_deleted_batch_leaves_its_files(client, http, stranger, store):
    batch = create(client)
    early = http.delete(f"/v1/batches/{batch.id}")
    move_to(store, batch, *WHOLE)
    assert http.delete(f"/v1/batches/{batch.id}", headers=stranger).status_code == 404

    answer = http.delete(f"/v1/batches/{batch.id}")

    assert (early.status_code, early.headers["x-should-retry"]) == (409, "false")
    assert "status 'validating'" in early.json()["error"]["message"]
    assert answer.json() == {"id": batch.id, "object": "batch", "deleted": True}
    assert http.delete(f"/v1/batches/{batch.id}").status_code == 404
    assert http.get(f"/v1/batches/{batch.id}").status_code == 404
    assert list(client.batches.list()) == []
    assert client.files.retrieve(batch.input_file_id).id == batch.input_file_id


def test_results_that_had_their_time_say_so(http, worker, store):
    job_id = an_ended_job(http)
    with store.database.write() as connection, store.snapshot() as tx:
        at = tx.now() - timedelta(seconds=60)
        connection.execute(update(tables.job).values(results_deleted_at=at))

    answer = http.get(f"/v1/jobs/{job_id}/results")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "results_deleted")
    assert http.get(f"/v1/jobs/{job_id}").json()["results_deleted_at"] == int(at.timestamp())


def test_who_waits_for_a_job_that_is_deleted_is_told(http, worker, store):
    def end_and_delete(worker: FakeWorker, claim: OnlineClaim) -> None:
        job = claim.job
        with store.transaction() as tx:
            assert transitions.finish(tx, job, JobState.FAILED, tx.now())
            assert tx.deletions.mark_deleted(job.tenant_id, job.id, tx.now())

    worker.behave = end_and_delete

    waited = http.post("/v1/jobs", json=online(), headers={"prefer": "wait=30"})
    chat = http.post("/v1/chat/completions", json=online()["body"])

    assert waited.status_code == chat.status_code == 404
    assert chat.json()["error"]["code"] == "not_found"
