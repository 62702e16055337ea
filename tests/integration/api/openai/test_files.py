"""The files routes with the official client: what goes up comes down, exactly, and only to its owner."""

import gzip
import io
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import openai
import pytest

from api.openai.upload_forms import Upload, keep_upload
from nightshift.errors import StorageUnavailable
from nightshift.jobs.files import RECORDED_WITHIN_S, FilePurpose
from nightshift.objectstore import DirectoryStore
from nightshift.store import Store
from nightshift.tenants.quotas import Quotas
from tests.helpers.fakes import FakeClock, a_file
from tests.integration.api.conftest import batch_lines
from tests.integration.scheduler.scheduling import BusyStore

LINES = batch_lines(3)


def form_part(name: str, content: bytes) -> bytes:
    """A field of a form whose boundary is `x`."""
    return b'--x\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), content)


@pytest.mark.parametrize(
    ("filename", "header"),
    [
        ("in.jsonl", 'attachment; filename="in.jsonl"'),
        (
            "r\u00e9sum\u00e9 1.jsonl",
            "attachment; filename=\"r_sum_ 1.jsonl\"; filename*=UTF-8''r%C3%A9sum%C3%A9%201.jsonl",
        ),
    ],
)
def test_content_comes_under_the_name_it_went_up_with(shared_client, filename, header):
    file = shared_client.files.create(file=(filename, LINES), purpose="batch")

    assert file.filename == filename
    assert shared_client.files.content(file.id).response.headers["content-disposition"] == header


def test_a_batch_file_expires_after_thirty_days_and_another_never(client):
    by_default = client.files.create(file=LINES, purpose="batch")
    opaque = client.files.create(file=b"\xff\x00", purpose="user_data")

    assert by_default.expires_at == by_default.created_at + 30 * 86400
    assert opaque.expires_at is None


@pytest.mark.parametrize(
    ("expiry", "param"),
    [
        ({"anchor": "created_at", "seconds": 3599}, "expires_after.seconds"),
        ({"anchor": "created_at", "seconds": 2592001}, "expires_after.seconds"),
        ({"anchor": "created_at", "seconds": "9" * 5000}, "expires_after.seconds"),
        ({"anchor": "created_at", "seconds": "７２００"}, "expires_after.seconds"),  # full-width digits
        ({"anchor": "last_used_at", "seconds": 7200}, "expires_after.anchor"),
    ],
)
def test_an_expiry_out_of_bounds_is_refused(shared_client, expiry, param):
    with pytest.raises(openai.BadRequestError) as refused:
        shared_client.files.create(file=LINES, purpose="batch", expires_after=expiry)
    assert refused.value.param == param


def test_a_large_file_comes_back_exactly(client):
    content = b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(5000))  # spools to disk
    file = client.files.create(file=content, purpose="user_data")

    assert client.files.content(file.id).content == content


@pytest.mark.parametrize(
    ("range_header", "status", "expected"),
    [
        ("bytes=0-3", 206, LINES[:4]),
        ("bytes=10-", 206, LINES[10:]),
        ("bytes=-5", 206, LINES[-5:]),
        ("bytes=0-0,4-5", 200, LINES),  # several ranges: the whole file is a permitted answer
        (f"bytes={'9' * 5000}-", 200, LINES),  # no number we read: no range, the whole file
        ("bytes=999999-", 416, None),
    ],
)
def test_a_range_of_a_file_can_be_read(shared_client, shared_http, range_header, status, expected):
    file = shared_client.files.create(file=LINES, purpose="batch")
    answer = shared_http.get(f"/v1/files/{file.id}/content", headers={"range": range_header})

    assert answer.status_code == status
    if expected is None:
        assert answer.headers["content-range"] == f"bytes */{len(LINES)}"
        assert answer.json()["error"]["param"] == "Range"
    else:
        assert answer.content == expected


def test_an_expired_file_is_not_found(client, store):
    with store.transaction() as tx:
        long_ago = tx.now() - timedelta(days=31)
        expires_at = long_ago + timedelta(days=30)
        tx.files.insert(a_file(id="file-old", created_at=long_ago, expires_at=expires_at))
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve("file-old")
    assert list(client.files.list()) == []


def test_another_tenants_file_is_not_found(client, client_of):
    file = client.files.create(file=LINES, purpose="batch")
    other_tenant = client_of("other")

    for call in (other_tenant.files.retrieve, other_tenant.files.content, other_tenant.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    assert list(other_tenant.files.list()) == []
    assert client.files.retrieve(file.id).id == file.id


def test_listing_pages_through_every_file_once_in_either_order(client):
    ids = [client.files.create(file=LINES, purpose="batch").id for _ in range(5)]
    client.files.create(file=LINES, purpose="user_data")

    newest_first = [file.id for file in client.files.list(limit=2, purpose="batch")]
    oldest_first = [file.id for file in client.files.list(limit=2, purpose="batch", order="asc")]

    assert sorted(newest_first) == sorted(ids)
    assert oldest_first == newest_first[::-1]


def test_a_compressed_batch_file_is_kept_as_it_is(shared_client):
    packed = gzip.compress(LINES)
    file = shared_client.files.create(file=("in.jsonl.gz", packed), purpose="batch")

    assert file.bytes == len(packed)
    assert shared_client.files.content(file.id).content == packed


@pytest.mark.parametrize(
    ("content", "purpose", "param", "code"),
    [
        (b"", "batch", "file", "empty_file"),
        (b"{}\n\xff\xfe\n", "batch", "file", "invalid_encoding"),
        (b"x" * 2_000_000 + "é".encode()[:1], "batch", "file", "invalid_encoding"),
        (LINES, "batch_output", "purpose", "invalid_value"),
        (LINES, "nonsense", "purpose", "invalid_value"),
    ],
)
def test_an_upload_that_cannot_be_used_is_refused_and_leaves_nothing(
    client, tmp_path, content, purpose, param, code
):
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=content, purpose=purpose)

    assert (refused.value.param, refused.value.code) == (param, code)
    assert [path for path in (tmp_path / "data" / "objects").rglob("*") if path.is_file()] == []


def test_an_upload_without_a_purpose_or_a_file_is_refused(http):
    without_purpose = http.post("/v1/files", files={"file": ("in.jsonl", LINES)})
    without_file = http.post("/v1/files", files={"purpose": (None, "batch")})
    not_a_form = http.post("/v1/files", json={"purpose": "batch"})
    broken = http.post(
        "/v1/files", content=b"--x\r\nno", headers={"content-type": "multipart/form-data; boundary=x"}
    )

    assert without_purpose.json()["error"]["param"] == "purpose"
    assert without_file.json()["error"]["param"] == "file"
    assert [answer.status_code for answer in (without_purpose, without_file, not_a_form, broken)] == [400] * 4
    assert broken.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=", b"--x--"),
        ("multipart/form-data; boundary=x", b"--y\r\nno"),
        ("multipart/form-data; boundary=x", form_part("note", b"") * 17 + b"--x--"),
        ("multipart/form-data; boundary=x", form_part("note", b"n" * 1_100_000) + b"--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\ncontent-disposition: form-data\r\n\r\n\r\n--x--"),
        ("multipart/form-data; boundary=" + "é" * 80, b"--x--"),
        ("multipart/form-data; boundary=x; charset=nonsense", form_part("note", b"\xff") + b"--x--"),
    ],
)
def test_a_form_that_cannot_be_read_is_refused_with_a_code(shared_http, content_type, content):
    headers = {b"content-type": content_type.encode("latin-1")}
    answer = shared_http.post("/v1/files", content=content, headers=headers)

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] is not None
    assert error["code"] is not None


def test_a_filename_is_data_and_never_a_path(client, tmp_path):
    file = client.files.create(file=("../../../etc/pass\x07wd", LINES), purpose="batch")

    stored = [path for path in (tmp_path / "data" / "objects").rglob("*") if path.is_file()]
    assert [path.name for path in stored] == [file.id]
    assert file.filename.isprintable()


@pytest.mark.parametrize("away", [timedelta(hours=11), timedelta(days=2)])
def test_an_upload_that_retention_may_have_collected_by_now_is_not_recorded(sqlite_database, tmp_path, away):
    clock = FakeClock()
    store = Store(sqlite_database, clock=clock)
    # The machine is suspended while the bytes are put, and wakes up beside a scheduler that does, too.
    objects: Any = BusyStore(
        DirectoryStore(tmp_path), "put", lambda: clock.advance(seconds=away.total_seconds())
    )
    upload = Upload(FilePurpose.BATCH, "in.jsonl", None, io.BytesIO(LINES))

    may_be_lost = away > timedelta(seconds=RECORDED_WITHIN_S)
    with pytest.raises(StorageUnavailable) if may_be_lost else nullcontext():
        keep_upload(store, objects, upload, "default", Quotas())

    with store.snapshot() as tx:
        assert len(tx.files.list("default", tx.now(), limit=10)) == (not may_be_lost)
