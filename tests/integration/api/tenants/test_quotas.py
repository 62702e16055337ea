"""Quotas over HTTP: what is above one is refused, with the reason and when to retry; other tenants go on."""

import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from api import access as slots
from api.app import create_app
from api.services.services import AppSettings
from nightshift.jobs.json_text import json_bytes
from nightshift.process.settings import QuotaSettings, SubmissionSettings
from scheduler.duties.ageing import Ageing
from tests.helpers.fakes import InMemoryStreams
from tests.integration.api.asking import CHAT, batch_over, chat, online
from tests.integration.api.conftest import HttpMaker
from tests.integration.api.fake_worker import CHAT_MODEL
from tests.integration.api.serving import serving

UPLOAD: Any = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}\n")}}
PARTS = {"filename": "a.jsonl", "purpose": "batch", "bytes": 3, "mime_type": "text/jsonl"}
HELLO = chat("hello")


@pytest.fixture
def settings(settings: AppSettings) -> AppSettings:
    """The model is known before a worker has registered."""
    return replace(settings, submission=SubmissionSettings(models=(CHAT_MODEL,)))


TenantMaker = Callable[..., httpx.Client]


@pytest.fixture
def tenant_of(admin: httpx.Client, http_of: HttpMaker) -> TenantMaker:
    """Makes a client of a new tenant with these quotas."""

    def make(name: str, **quotas: int) -> httpx.Client:
        assert admin.post("/v1/tenants", json={"name": name, "quotas": quotas}).status_code == 201
        return http_of(name)

    return make


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_requests_above_the_rate_are_told_when_to_come_back_and_others_are_not(tenant_of, worker):
    acme, other = tenant_of("acme", requests_per_minute=2), tenant_of("other")

    answers = [acme.post(CHAT, json=HELLO) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    refused = answers[-1]
    assert code_of(refused) == (429, "rate_limit_exceeded")
    assert "the limit is 2" in refused.json()["error"]["message"]
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert re.fullmatch(r"1m[0-9.]+s|[0-9.]+s", refused.headers["x-ratelimit-reset-requests"])
    wait_ms = int(refused.headers["retry-after-ms"])
    assert 0 < wait_ms <= 1000 * int(refused.headers["retry-after"]) < wait_ms + 1000
    unlimited = other.post(CHAT, json=HELLO)
    assert unlimited.status_code == 200
    assert not [name for name in unlimited.headers if name.startswith("x-ratelimit")]
    assert acme.get("/v1/jobs").status_code == 200  # reading is not counted


def test_a_request_without_the_body_that_it_may_have_counts_as_well(tenant_of):
    acme = tenant_of("acme", requests_per_minute=1)

    answers = [acme.post("/v1/jobs/job_unknown/retry") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [404, 429]


def test_submissions_count_as_requests_and_bulk_jobs_cost_no_tokens(tenant_of, worker, bulk):
    acme = tenant_of("acme", requests_per_minute=2, tokens_per_minute=1000)

    of_many, of_one = acme.post("/v1/jobs", json=bulk), acme.post("/v1/jobs", json=online())

    assert of_many.headers["x-ratelimit-remaining-requests"] == "1"
    assert "x-ratelimit-limit-tokens" not in of_many.headers
    assert of_one.headers["x-ratelimit-remaining-requests"] == "0"
    assert int(of_one.headers["x-ratelimit-remaining-tokens"]) < 1000
    assert code_of(acme.post("/v1/jobs", json=bulk)) == (429, "rate_limit_exceeded")


def test_tokens_are_counted_by_what_a_request_may_cost(tenant_of, worker):
    acme = tenant_of("acme", tokens_per_minute=1000)

    first = acme.post(CHAT, json=HELLO | {"max_tokens": 900})
    second = acme.post(CHAT, json=HELLO | {"max_tokens": 900})
    small = acme.post(CHAT, json=HELLO | {"max_tokens": 10})
    never = acme.post(CHAT, json=HELLO | {"max_tokens": 1000})

    assert first.status_code == small.status_code == 200
    assert first.headers["x-ratelimit-limit-tokens"] == "1000"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 100
    assert code_of(second) == (429, "rate_limit_exceeded")
    assert "x-should-retry" not in second.headers
    assert code_of(never) == (429, "rate_limit_exceeded")
    assert never.headers["x-should-retry"] == "false"
    assert "retry-after" not in never.headers


def test_the_conversation_before_a_response_is_counted_with_it(tenant_of, worker):
    acme = tenant_of("acme", tokens_per_minute=2000, requests_per_minute=3)
    body = {"model": CHAT_MODEL, "input": "hello " * 500}
    first = acme.post("/v1/responses", json=body)
    goes_on = {"model": CHAT_MODEL, "input": "and", "previous_response_id": first.json()["id"]}
    second = acme.post("/v1/responses", json=goes_on)

    assert int(first.headers["x-ratelimit-remaining-tokens"]) > 1000
    assert code_of(second) == (429, "rate_limit_exceeded")
    assert second.headers["x-ratelimit-remaining-requests"] == "1", "it is one request"


def test_two_api_processes_share_a_rate(settings, tenant_of, worker):
    acme = tenant_of("acme", requests_per_minute=3)
    with serving(create_app(settings)) as second:
        urls = [str(acme.base_url).rstrip("/"), second] * 2
        answers = [acme.post(f"{url}{CHAT}", json=HELLO) for url in urls]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]


def test_null_takes_a_quota_away_and_leaves_others_and_the_audit_log_has_it(admin, tenant_of):
    tenant_of("acme", requests_per_minute=1, open_streams=5)

    changed = admin.patch("/v1/tenants/acme", json={"quotas": {"requests_per_minute": None}}).json()
    logged = admin.get("/v1/audit").json()["data"][0]

    assert changed["quotas"]["requests_per_minute"] is None
    assert changed["quotas"]["open_streams"] == 5
    assert logged["details"]["quotas"] == {"requests_per_minute": None}


@contextmanager
def hanging(client: httpx.Client, head: str) -> Iterator[None]:
    """A request whose body does not arrive."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
        key = client.headers["authorization"]
        connection.sendall(
            f"{head} HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\ncontent-length: 9\r\n"
            "content-type: multipart/form-data; boundary=x\r\nexpect: 100-continue\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # it is being read
        yield


def test_uploads_in_flight_are_limited_and_other_requests_are_not(tenant_of):
    acme = tenant_of("acme", uploads_in_flight=1)
    with hanging(acme, "POST /v1/files"):
        refused = acme.post("/v1/files", **UPLOAD)
        assert acme.get("/v1/files").status_code == 200
        used = acme.get("/v1/limits").json()["limits"]["uploads_in_flight"]

    assert code_of(refused) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert used == {"limit": 1, "used": 1}


def test_concurrent_requests_are_limited(tenant_of):
    acme, other = tenant_of("acme", concurrent_requests=1), tenant_of("other", concurrent_requests=1)

    with hanging(acme, "POST /v1/files"):
        assert code_of(acme.get("/v1/models")) == (429, "rate_limit_exceeded")
        assert other.get("/v1/models").status_code == 200


def test_streams_are_limited_whether_of_tokens_or_of_events(tenant_of):
    """No worker answers: the streams stay open."""
    acme = tenant_of("acme", open_streams=1)
    job = acme.post("/v1/jobs", json=online()).json()["id"]

    with acme.stream("GET", f"/v1/jobs/{job}/events") as events:
        assert events.status_code == 200
        assert code_of(acme.get(f"/v1/jobs/{job}/events")) == (429, "rate_limit_exceeded")
        assert code_of(acme.post(CHAT, json=HELLO | {"stream": True})) == (429, "rate_limit_exceeded")
        assert acme.get(f"/v1/jobs/{job}").status_code == 200
        assert len(acme.get("/v1/jobs").json()["data"]) == 1  # the refused one was not accepted


def test_a_tenant_without_quotas_follows_so_many_jobs_at_a_time(tenant_of, monkeypatch):
    monkeypatch.setattr(slots, "FOLLOWED_MAX", 1)
    acme, other = tenant_of("acme"), tenant_of("other")
    events = [
        f"/v1/jobs/{client.post('/v1/jobs', json=online()).json()['id']}/events" for client in (acme, other)
    ]

    with acme.stream("GET", events[0]) as followed:
        assert followed.status_code == 200
        assert code_of(acme.get(events[0])) == (429, "rate_limit_exceeded")
        with other.stream("GET", events[1]) as others:
            assert others.status_code == 200


def test_a_slot_is_free_again_after_the_request_however_it_ended(tenant_of, worker):
    acme = tenant_of("acme", concurrent_requests=1, open_streams=1, uploads_in_flight=1)
    streamed = HELLO | {"stream": True}

    assert acme.post(CHAT, content=b"{").status_code == 400
    assert acme.post(CHAT, json=streamed | {"messages": []}).status_code == 400
    assert acme.post("/v1/files", files={"file": b""}).status_code == 400
    assert acme.head("/v1/files").status_code == 200
    for _ in range(2):
        assert acme.post(CHAT, json=streamed).text.endswith("data: [DONE]\n\n")
    limits = acme.get("/v1/limits").json()["limits"]
    assert limits["concurrent_requests"]["used"] == 1  # this one
    assert (limits["open_streams"]["used"], limits["uploads_in_flight"]["used"]) == (0, 0)


def test_an_administrator_and_the_tenant_see_limits_and_use(admin, tenant_of, worker):
    acme = tenant_of("acme", requests_per_minute=5)
    acme.post(CHAT, json=HELLO)

    own, of_acme = acme.get("/v1/limits").json(), admin.get("/v1/tenants/acme").json()

    assert own["limits"]["requests_per_minute"] == {"limit": 5, "used": 1}
    assert own["limits"]["tokens_per_minute"] == {"limit": None, "used": None}
    assert of_acme["quotas"]["requests_per_minute"] == 5
    assert of_acme["limits"]["requests_per_minute"] == {"limit": 5, "used": 1}


def test_files_above_the_quota_are_refused_until_one_is_deleted(tenant_of):
    acme, other = tenant_of("acme", stored_files=1), tenant_of("other", stored_files=1)
    first = acme.post("/v1/files", **UPLOAD)

    refused = acme.post("/v1/files", **UPLOAD)
    refused_parts = acme.post("/v1/uploads", json=PARTS)

    for answer in (refused, refused_parts):
        assert code_of(answer) == (429, "insufficient_quota")
        assert "stored files would be 2, and your quota is 1" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
    assert refused.json()["error"]["type"] == "insufficient_quota"
    assert other.post("/v1/files", **UPLOAD).status_code == 200
    assert acme.get("/v1/limits").json()["limits"]["stored_files"] == {"limit": 1, "used": 1}
    acme.delete(f"/v1/files/{first.json()['id']}")
    assert acme.post("/v1/files", **UPLOAD).status_code == 200


def test_bytes_above_the_quota_are_not_kept(tenant_of, data):
    acme = tenant_of("acme", stored_bytes=5)
    large = UPLOAD | {"files": {"file": ("a.jsonl", b"{}\n{}\n")}}

    assert code_of(acme.post("/v1/files", **large)) == (429, "insufficient_quota")
    assert not [path for path in data.data_dir.rglob("objects/files/**/*") if path.is_file()]
    assert acme.post("/v1/files", **UPLOAD).status_code == 200
    assert acme.get("/v1/limits").json()["limits"]["stored_bytes"] == {"limit": 5, "used": 3}


def test_the_parts_of_uploads_count_as_stored_bytes(tenant_of):
    acme = tenant_of("acme", stored_bytes=5)
    uploads = [acme.post("/v1/uploads", json=PARTS).json()["id"] for _ in range(2)]
    part: Any = {"files": {"data": b"{}\n"}}

    first = acme.post(f"/v1/uploads/{uploads[0]}/parts", **part)
    second = acme.post(f"/v1/uploads/{uploads[1]}/parts", **part)
    completed = acme.post(f"/v1/uploads/{uploads[0]}/complete", json={"part_ids": [first.json()["id"]]})

    assert code_of(second) == (429, "insufficient_quota")
    assert completed.json()["status"] == "completed"
    used = acme.get("/v1/limits").json()["limits"]
    assert (used["stored_files"]["used"], used["stored_bytes"]["used"]) == (1, 3)


def stored_bytes(client: httpx.Client) -> int:
    used: int = client.get("/v1/limits").json()["limits"]["stored_bytes"]["used"]
    return used


@pytest.mark.parametrize("face", [CHAT, "/v1/jobs"])
def test_bodies_and_answers_of_online_requests_count_until_they_are_deleted(tenant_of, worker, store, face):
    body = chat("h\u00e9llo " * 100)
    request = body if face == CHAT else {"endpoint": CHAT, "body": body}
    acme = tenant_of("acme", stored_bytes=4 * json_bytes(body))

    answers = [acme.post(face, json=request, headers={"Prefer": "wait=30"}) for _ in range(3)]

    assert [answer.is_success for answer in answers] == [True, True, False]
    assert code_of(answers[2]) == (429, "insufficient_quota")
    assert re.search(r"stored bytes would be [0-9]+, and your quota is", answers[2].text)
    assert answers[2].headers["x-should-retry"] == "false"
    stored = stored_bytes(acme)
    assert stored > 2 * json_bytes(body)
    Ageing(store, InMemoryStreams()).run_once(store.now() + timedelta(days=2))
    assert stored_bytes(acme) == 0
    assert acme.post(face, json=request).is_success


def test_a_batch_of_a_stored_file_is_refused_above_the_quota_since_its_results_are_stored(tenant_of, worker):
    acme = tenant_of("acme", stored_bytes=200)
    file_id = acme.post("/v1/files", **UPLOAD).json()["id"]
    assert acme.post(CHAT, json=HELLO).is_success
    assert stored_bytes(acme) > 200

    refused = acme.post("/v1/batches", json=batch_over(file_id))
    assert code_of(refused) == (429, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    assert code_of(acme.post(CHAT, json=HELLO)) == (429, "insufficient_quota")


def test_what_is_written_into_a_job_counts_as_stored_bytes(tenant_of):
    acme = tenant_of("acme", stored_bytes=2000)
    file_id = acme.post("/v1/files", **UPLOAD).json()["id"]
    before = stored_bytes(acme)
    note = {"note": "x" * 500}
    batch = batch_over(file_id, metadata=note)

    batch_id = acme.post("/v1/batches", json=batch).json()["id"]
    assert stored_bytes(acme) == before + json_bytes(note)
    acme.patch(f"/v1/jobs/{batch_id.replace('batch_', 'job_')}", json={"metadata": {}}).raise_for_status()
    assert stored_bytes(acme) == before + json_bytes({})
    answers = [acme.post("/v1/batches", json=batch) for _ in range(4)]
    assert [code_of(answer) for answer in answers if not answer.is_success] == [(429, "insufficient_quota")]


@pytest.mark.parametrize(
    ("quota", "path", "request_of", "status"),
    [
        ("stored_files", "/v1/files", lambda: UPLOAD, 200),
        ("queued_rows", "/v1/jobs", lambda: {"json": online()}, 202),
    ],
)
def test_requests_racing_through_two_processes_do_not_exceed_a_quota(
    settings, tenant_of, quota, path, request_of, status
):
    acme = tenant_of("acme", **{quota: 3})
    with serving(create_app(settings)) as second, ThreadPoolExecutor(8) as pool:
        urls = [str(acme.base_url).rstrip("/"), second] * 6
        answers = list(pool.map(lambda url: acme.post(f"{url}{path}", **request_of()), urls))

    assert sorted(answer.status_code for answer in answers) == [status] * 3 + [429] * 9
    assert len(acme.get(path).json()["data"]) == 3


def test_requests_above_the_queue_are_refused_until_one_has_ended(tenant_of):
    """No worker answers."""
    acme, other = tenant_of("acme", queued_rows=1), tenant_of("other", queued_rows=1)
    first = acme.post("/v1/jobs", json=online()).json()["id"]

    refused = acme.post("/v1/jobs", json=online())
    refused_chat = acme.post(CHAT, json=HELLO)

    for answer in (refused, refused_chat):
        assert code_of(answer) == (429, "insufficient_quota")
        assert "queued rows would be 2, and your quota is 1" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
    assert other.post("/v1/jobs", json=online()).status_code == 202
    acme.post(f"/v1/jobs/{first}/cancel")
    assert acme.post("/v1/jobs", json=online()).status_code == 202
    assert acme.get("/v1/limits").json()["limits"]["queued_rows"] == {"limit": 1, "used": 1}


def test_a_request_that_never_fits_the_queued_tokens_is_not_retried(tenant_of):
    acme = tenant_of("acme", queued_tokens=100)

    refused = acme.post(CHAT, json=HELLO | {"max_tokens": 100})

    assert code_of(refused) == (429, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    assert acme.post("/v1/jobs", json=online()).status_code == 202


def test_a_default_holds_for_tenants_without_a_quota_of_their_own(settings, tenant_of, worker):
    default, own = tenant_of("default-one"), tenant_of("own-one", requests_per_minute=2)
    with serving(create_app(replace(settings, quotas=QuotaSettings(quota_requests_per_minute=1)))) as url:

        def statuses(client: httpx.Client, count: int) -> list[int]:
            return [client.post(f"{url}{CHAT}", json=HELLO).status_code for _ in range(count)]

        assert statuses(default, 2) == [200, 429]
        assert statuses(own, 3) == [200, 200, 429]
