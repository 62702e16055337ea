"""The same API on PostgreSQL: what differs between databases is races, types and text."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from nightshift.jobs import Face
from nightshift.lifecycle import transitions
from nightshift.process.settings import DataSettings
from nightshift.store.databases.database import Database
from tests.helpers.fakes import a_new_job, a_spec
from tests.integration.api.asking import batch_over
from tests.integration.api.conftest import batch_lines
from tests.integration.api.fake_worker import CHAT_MODEL
from tests.integration.servers import PostgresServer
from tests.integration.store.racing import wait_until_blocked


@pytest.fixture
def data(postgresql_database: Database, postgresql_server: PostgresServer, tmp_path: Path) -> DataSettings:
    del postgresql_database  # emptied, and of the current schema
    return DataSettings(data_dir=tmp_path / "data", database_url=postgresql_server.url())


def test_requests_with_one_key_at_the_same_time_make_one_job(http, bulk):
    def post(_: int) -> httpx.Response:
        return http.post("/v1/jobs", json=bulk, headers={"idempotency-key": "k1"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(16)))

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(http.get("/v1/jobs").json()["data"]) == 1


def test_a_dry_run_only_reads(http, bulk, worker):
    """PostgreSQL refuses to lock a row in its transactions."""
    files = {"file": ("rows.jsonl", batch_lines(3)), "purpose": (None, "batch")}
    file_id = http.post("/v1/files", files=files).json()["id"]
    shown = http.post("/v1/jobs?dry_run=true", json=bulk | {"input": file_id}).json()

    assert (shown["rows_checked"], shown["problems"], shown["model"]) == (3, [], CHAT_MODEL)
    assert http.get("/v1/jobs").json()["data"] == []


def test_the_bytes_of_a_file_are_not_deleted_beside_the_submit_of_a_batch_over_it(
    client, http, store, postgresql_database
):
    file = client.files.create(file=("in.jsonl", batch_lines(1)), purpose="batch")
    new = a_new_job(face=Face.OPENAI, spec=a_spec(input=file.id))

    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as tx:  # a submit, held up before its commit
            assert tx.files.get_to_read(new.tenant_id, file.id, tx.now())
            transitions.submit_bulk(tx, new, tx.now())
            deleting = pool.submit(http.delete, f"/v1/files/{file.id}")
            wait_until_blocked(postgresql_database)

    assert deleting.result().json()["deleted"] is True
    with store.snapshot() as tx:
        assert tx.files.input(new.tenant_id, file.id) is not None  # for the batch, with its bytes


def test_a_batch_over_a_file_that_is_being_deleted_is_refused(client, http, store, postgresql_database):
    file = client.files.create(file=("in.jsonl", batch_lines(1)), purpose="batch")
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as tx:  # a delete, held up before its commit
            assert tx.files.get_to_delete("default", file.id, tx.now())
            assert tx.files.delete("default", file.id)
            submitting = pool.submit(http.post, "/v1/batches", json=batch_over(file.id))
            wait_until_blocked(postgresql_database)

    assert submitting.result().json()["error"]["code"] == "file_not_found"


def test_text_no_database_can_keep_is_refused_rather_than_broken(http):
    for path in ("/v1/files/%00", "/v1/batches?after=%00", "/v1/models/%00", "/v1/jobs/%00/events"):
        assert http.get(path).status_code == 400, path
    body = {"endpoint": "chat", "input": "file:///a\0b", "output": "file:///x/"}
    assert http.post("/v1/jobs", json=body).status_code == 400
    for text in (b"\\ud800", b"\xed\xa0\x80"):  # half of a surrogate pair, escaped and as bytes
        online = b'{"model": "%s", "messages": [{"role": "user", "content": "x"}]}' % text
        batch = (
            b'{"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "metadata": {"a": "%s"}}' % text
        )
        for path, body in (("/v1/chat/completions", online), ("/v1/batches", batch), ("/v1/jobs", batch)):
            assert http.post(path, content=body).status_code == 400, (path, body)
