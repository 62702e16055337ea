"""The uploads routes with the official client: a file above the limit of one upload arrives in parts."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from nightshift.process.settings import ApiSettings
from tests.integration.api.conftest import batch_lines
from tests.integration.api.waiting import wait_until_stored

LINES = batch_lines(30)
ASKED = {"filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}


def an_upload(client: openai.OpenAI, size_bytes: int = len(LINES), **fields: object) -> str:
    body = {"bytes": size_bytes, **ASKED, **fields}
    return client.uploads.create(**body).id


def test_the_clients_helper_uploads_a_file_above_the_limit_of_one_request(client, settings, tmp_path):
    path = tmp_path / "large.jsonl"
    path.write_bytes(LINES)
    done = client.uploads.upload_file_chunked(
        file=path,
        mime_type="application/jsonl",
        purpose="batch",
        part_size=1000,
        md5=hashlib.md5(LINES, usedforsecurity=False).hexdigest(),
    )

    assert (done.object, done.status, done.bytes) == ("upload", "completed", len(LINES))
    assert done.expires_at == done.created_at + 3600
    file = done.file
    assert (file.filename, file.purpose, file.status) == ("large.jsonl", "batch", "processed")
    assert file.expires_at == file.created_at + 30 * 86400
    assert client.files.content(file.id).content == LINES
    assert [listed.id for listed in client.files.list()] == [file.id]
    wait_until_stored(settings.data.data_dir, [file.id])


def test_parts_are_added_at_once_and_ordered_at_the_end(client):
    upload_id = an_upload(client, expires_after={"anchor": "created_at", "seconds": 7200})
    pieces = [LINES[begin : begin + 500] for begin in range(0, len(LINES), 500)]

    def add(piece: bytes) -> str:
        part = client.uploads.parts.create(upload_id, data=piece)
        assert (part.object, part.upload_id) == ("upload.part", upload_id)
        return part.id

    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(add, reversed(pieces)))
    first = client.uploads.complete(upload_id, part_ids=added[::-1])
    again = client.uploads.complete(upload_id, part_ids=added[::-1])

    assert first == again
    assert client.files.content(first.file.id).content == LINES
    assert first.file.expires_at == first.file.created_at + 7200
    assert len(list(client.files.list())) == 1


def test_a_cancelled_upload_leaves_nothing(client, settings):
    upload_id = an_upload(client)
    part = client.uploads.parts.create(upload_id, data=LINES)

    assert client.uploads.cancel(upload_id).status == "cancelled"
    assert client.uploads.cancel(upload_id).status == "cancelled"

    with pytest.raises(openai.ConflictError, match="Cannot add parts to an upload with status 'cancelled'"):
        client.uploads.parts.create(upload_id, data=LINES)
    with pytest.raises(openai.ConflictError) as refused:
        client.uploads.complete(upload_id, part_ids=[part.id])
    assert refused.value.response.headers["x-should-retry"] == "false"
    wait_until_stored(settings.data.data_dir, [])


def test_another_tenants_upload_is_not_found(client, client_of):
    upload_id = an_upload(client)
    part = client.uploads.parts.create(upload_id, data=LINES)
    other = client_of("other")

    for act in (
        lambda: other.uploads.parts.create(upload_id, data=LINES),
        lambda: other.uploads.complete(upload_id, part_ids=[part.id]),
        lambda: other.uploads.cancel(upload_id),
    ):
        with pytest.raises(openai.NotFoundError, match=f"No such Upload object: {upload_id}") as missing:
            act()
        assert missing.value.param == "id"
    with pytest.raises(openai.BadRequestError) as refused:
        other.uploads.complete(an_upload(other), part_ids=[part.id])
    assert refused.value.param == "part_ids[0]"
    assert client.uploads.complete(upload_id, part_ids=[part.id]).status == "completed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bytes": 0}, "bytes"),
        ({"bytes": 2**60}, "bytes"),
        ({"bytes": "9"}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"purpose": "batch_output"}, "purpose"),
        ({"mime_type": None}, "mime_type"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
    ],
)
def test_an_upload_that_cannot_be_is_refused_by_the_field(shared_http, fields, param):
    answer = shared_http.post("/v1/uploads", json={"bytes": 9, **ASKED, **fields})

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "part_ids"),
        ({"part_ids": []}, "part_ids"),
        ({"part_ids": ["part_1", 2]}, "part_ids[1]"),
        ({"part_ids": ["part_1"], "md5": "no"}, "md5"),
        ({"part_ids": ["part_1"]}, "part_ids[0]"),
    ],
)
def test_a_completion_that_cannot_be_is_refused_by_the_field(shared_client, shared_http, body, param):
    answer = shared_http.post(f"/v1/uploads/{an_upload(shared_client)}/complete", json=body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_part_that_is_no_file_is_refused(shared_client, shared_http):
    path = f"/v1/uploads/{an_upload(shared_client)}/parts"
    answers = [
        shared_http.post(path, files={"file": LINES}),
        shared_http.post(path, files={"data": b""}),
        shared_http.post(path, json={"data": "x"}),
    ]

    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert [answer.json()["error"]["param"] for answer in answers] == ["data", "data", "Content-Type"]


def test_a_tenant_has_so_many_pending_uploads_and_no_more(client_of, settings):
    client = client_of(max_retries=0)
    for _ in range(ApiSettings().uploads_pending_max):
        an_upload(client)

    with pytest.raises(openai.RateLimitError, match="pending already"):
        an_upload(client)
