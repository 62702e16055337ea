"""The batches routes with the official client: create, list, and cancel in every state."""

import httpx
import openai
import pytest
from openai.types import Batch

from nightshift.jobs import Counts, Fault, InputError, Job, JobState
from nightshift.jobs.ids import job_id_of_batch
from nightshift.lifecycle import transitions
from nightshift.store import Store, Transaction
from tests.helpers.fakes import a_shard
from tests.integration.api.asking import batch_over, end_job
from tests.integration.api.conftest import batch_lines


def create(client: openai.OpenAI, **fields: object) -> Batch:
    file = client.files.create(file=batch_lines(3), purpose="batch")
    return create_from(client, file.id, **fields)


def create_from(client: openai.OpenAI, file_id: str, **fields: object) -> Batch:
    return client.batches.create(**batch_over(file_id, **fields))


def job_of(tx: Transaction, batch: Batch) -> Job:
    return tx.jobs.fetch(job_id_of_batch(batch.id) or "")


def move_to(store: Store, batch: Batch, *path: JobState) -> None:
    """Does to a batch's job what the scheduler and the workers would."""
    with store.transaction() as tx:
        now = tx.now()
        for state in path:
            job = job_of(tx, batch)
            if state is JobState.QUEUED:
                assert transitions.plan(tx, job, "org/parrot", [a_shard()], now, rows_total=3)
            elif state is JobState.RUNNING:
                assert tx.jobs.mark_started(job.id, now, None)
            elif state is JobState.FINALIZING:
                assert tx.jobs.mark_finalizing(job.id, now)
            else:
                assert transitions.finish(tx, job, state, now, counts=Counts(3, 2, 1))


def test_the_input_of_a_running_batch_can_be_deleted_and_its_bytes_stay_for_the_batch(client, http, store):
    batch = create(client)
    with store.snapshot() as tx:
        stored = tx.files.input("default", batch.input_file_id)
    assert stored is not None

    assert client.files.delete(batch.input_file_id).deleted is True
    for gone in (http.get, http.delete):
        assert gone(f"/v1/files/{batch.input_file_id}").status_code == 404
    assert batch.input_file_id not in [file.id for file in client.files.list()]
    with store.snapshot() as tx:
        assert tx.files.input("default", batch.input_file_id) is not None  # for the batch, with its bytes
        assert tx.files.expired(tx.now(), 10) == []

    move_to(store, batch, JobState.FAILED)
    with store.snapshot() as tx:
        assert [file.id for file in tx.files.expired(tx.now(), 10)] == [batch.input_file_id]


def test_a_batch_has_every_key_the_client_knows(client, http):
    shown = http.get(f"/v1/batches/{create(client).id}").json()

    assert set(Batch.model_fields) <= set(shown)
    extension = shown["nightshift"]
    assert extension["job_id"] == job_id_of_batch(shown["id"])
    assert extension["priority"] == "standard"
    assert extension["queue_position"] == 1
    assert extension["partial_output_file_id"] is None


def test_a_batch_says_what_keeps_it_from_going_on_beside_openais_fields(client, http, store):
    batch = create(client)
    assert http.get(f"/v1/batches/{batch.id}").json()["nightshift"]["problem"] is None
    away = InputError("storage_unavailable", "The input cannot be read at present", param="input_file_id")
    with store.transaction() as tx:
        tx.jobs.record_input_fault(job_id_of_batch(batch.id) or "", Fault(error=away, met_at=tx.now()))

    shown = http.get(f"/v1/batches/{batch.id}").json()
    problem = shown["nightshift"]["problem"]
    assert (problem["code"], problem["param"]) == ("storage_unavailable", "input_file_id")
    assert (shown["status"], shown["errors"]) == ("validating", None)
    [listed] = http.get("/v1/batches").json()["data"]
    assert listed["nightshift"]["problem"] == problem


def test_extension_fields_choose_priority_and_window(client):
    batch = create(
        client,
        completion_window="90m",
        extra_body={"nightshift": {"priority": "background", "max_error_rate": 0.5}},
    )

    assert batch.expires_at == batch.created_at + 90 * 60
    assert batch.completion_window == "90m"
    assert batch.model_extra["nightshift"]["priority"] == "background"


def test_an_unknown_cursor_is_refused_rather_than_ignored(client):
    create(client)
    for after in ("batch_unknown", "17", ""):
        with pytest.raises(openai.NotFoundError) as refused:
            client.batches.list(after=after)
        assert refused.value.param == "after"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"completion_window": "tomorrow"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "900d"}, "completion_window"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"extra_body": {"nightshift": {"priorty": "background"}}}, "nightshift.priorty"),
        ({"extra_body": {"nightshift": {"max_runtime": "soon"}}}, "nightshift.max_runtime"),
        ({"extra_body": {"nightshift": {"webhook": {"url": "http://127.0.0.1/"}}}}, "nightshift.webhook.url"),
        ({"extra_body": {"nightshift": {"webhook": {"url": "ftp://x"}}}}, "nightshift.webhook.url"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_at_once(shared_client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        create(shared_client, **fields)
    assert refused.value.param.startswith(param)
    assert refused.value.code is not None


def test_a_batch_needs_a_file_of_its_own_tenant_and_purpose(client, client_of):
    theirs = client_of("other").files.create(file=batch_lines(1), purpose="batch")
    opaque = client.files.create(file=batch_lines(1), purpose="user_data")

    for file_id in ("file-unknown", theirs.id, opaque.id, "no-file", "s3://not-allowed/x.jsonl"):
        with pytest.raises(openai.BadRequestError) as refused:
            create_from(client, file_id)
        assert refused.value.param == "input_file_id"


QUEUED, RUNNING, FINALIZING = JobState.QUEUED, JobState.RUNNING, JobState.FINALIZING


@pytest.mark.parametrize("path", [(), (QUEUED,), (QUEUED, RUNNING)])
def test_a_batch_can_be_cancelled_until_it_is_finalizing(client, store, path):
    batch = create(client)
    move_to(store, batch, *path)

    cancelling = client.batches.cancel(batch.id)
    again = client.batches.cancel(batch.id)

    assert cancelling.status == "cancelling"
    assert cancelling.cancelling_at is not None
    assert again.cancelling_at == cancelling.cancelling_at
    move_to(store, batch, JobState.CANCELLED)
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status == "cancelled"
    assert cancelled.cancelled_at is not None


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ((QUEUED, RUNNING, FINALIZING), "finalizing"),
        ((QUEUED, RUNNING, FINALIZING, JobState.SUCCEEDED), "completed"),
        ((JobState.FAILED,), "failed"),
        ((QUEUED, JobState.EXPIRED), "expired"),
    ],
)
def test_cancelling_too_late_is_one_request_and_a_conflict(client, http, store, path, status):
    batch = create(client)
    move_to(store, batch, *path)
    before = requests_counted(http)

    with pytest.raises(openai.ConflictError, match=f"Cannot cancel a batch with status '{status}'") as late:
        client.batches.cancel(batch.id)

    assert late.value.response.headers["x-should-retry"] == "false"
    assert requests_counted(http) == before + 1


def test_the_shape_follows_the_job_to_its_end(client, store):
    batch = create(client)
    move_to(store, batch, QUEUED, RUNNING)
    running = client.batches.retrieve(batch.id)
    move_to(store, batch, FINALIZING, JobState.SUCCEEDED)
    completed = client.batches.retrieve(batch.id)

    assert (running.status, running.model) == ("in_progress", "org/parrot")
    assert completed.status == "completed"
    assert None not in (running.in_progress_at, completed.finalizing_at, completed.completed_at)
    assert completed.failed_at is completed.expired_at is completed.cancelled_at is None
    assert completed.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}


def test_a_file_that_failed_validation_shows_its_lines(client, store):
    batch = create(client)
    wrong = InputError("duplicate_custom_id", "row-1 was seen before", line=2, param="custom_id")
    end_job(store, job_id_of_batch(batch.id) or "", errors=[wrong])

    shown = client.batches.retrieve(batch.id)

    assert shown.status == "failed"
    assert (shown.errors.data[0].line, shown.errors.data[0].code) == (2, "duplicate_custom_id")


def test_another_tenants_batch_is_not_found(client, client_of):
    batch = create(client)
    other_tenant = client_of("other")

    for call in (other_tenant.batches.retrieve, other_tenant.batches.cancel):
        with pytest.raises(openai.NotFoundError) as missing:
            call(batch.id)
        assert missing.value.param == "id"
    assert list(other_tenant.batches.list()) == []


def requests_counted(http: httpx.Client) -> int:
    """How many requests to cancel the server has answered."""
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in http.get("/metrics").text.splitlines()
        if line.startswith("nightshift_http_requests_total") and "/v1/batches/{batch_id}/cancel" in line
    )
