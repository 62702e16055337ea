"""Every refusal in the one envelope, with an id, be it ours or the framework's."""

import re
from datetime import UTC, datetime, timedelta

import httpx
import openai
import pytest

from nightshift.tenants.keys import key_id
from tests.integration.api.asking import CHAT, chat, online
from tests.integration.api.fake_worker import CHAT_MODEL, EMBEDDING_MODEL

HELLO = chat()["messages"]


def refusal(answer: httpx.Response, status: int) -> dict[str, str | None]:
    """The error in an answer, which must be a whole envelope."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert re.fullmatch(r"req_[a-z0-9]{24}", answer.headers["x-request-id"])
    assert set(answer.json()) == {"error"}
    error: dict[str, str | None] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "line 1, column 2"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"model": "\xff"}', "not UTF-8"),
        (b'{"temperature": NaN}', "NaN is not JSON"),
        (b'{"model": "\\ud800"}', "surrogate"),
        (b'{"model": "\\u0000"}', "NUL"),
        (b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", "nested more than 64 levels"),
        (b'{"a": ' + b"[" * 100_000, "nested more than 64 levels"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(shared_http, body, says):
    error = refusal(shared_http.post(CHAT, content=body), 400)

    assert error["type"] == "invalid_request_error"
    assert says in str(error["message"])
    assert error["code"] is not None


def test_text_that_only_looks_like_an_escaped_nul_is_accepted(http, worker):
    body = rb'{"model": "org/parrot", "messages": [{"role": "user", "content": "a \\u0000 b \u00e9"}]}'

    answer = http.post(CHAT, content=body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "a \\u0000 b é"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 7}, "model"),
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"service_tier": "platinum"}, "service_tier"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"extra_body": {"best_of": 2}}, "best_of"),
    ],
)
def test_a_wrong_field_is_named(shared_client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        shared_client.chat.completions.create(**chat(**fields))
    assert refused.value.param == param
    assert refused.value.code is not None
    assert refused.value.request_id is not None


@pytest.mark.parametrize("given", ["", [], [""], [[]], 7, ["a", 1], ["a"] * 2049, [True]])
def test_an_input_that_cannot_be_embedded_is_refused(shared_http, given):
    error = refusal(shared_http.post("/v1/embeddings", json={"model": EMBEDDING_MODEL, "input": given}), 400)

    assert error["param"] == "input"


def test_a_missing_field_is_named(shared_http):
    error = refusal(shared_http.post(CHAT, json={"model": CHAT_MODEL}), 400)

    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")


def test_an_unknown_model_is_not_found_in_one_request(client, worker):
    for call in (
        lambda: client.chat.completions.create(model="gpt-9", messages=HELLO),
        lambda: client.embeddings.create(model="gpt-9", input="x"),
        lambda: client.models.retrieve("org/gpt-9"),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            call()
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        sentence = r"The model `(org/)?gpt-9` does not exist or you do not have access to it\."
        assert re.match(sentence, missing.value.body["message"])


def test_a_model_that_does_something_else_is_refused(client, worker):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=EMBEDDING_MODEL, messages=HELLO)
    assert refused.value.code == "model_not_supported"


def test_unknown_routes_and_methods_speak_the_envelope(shared_http):
    assert refusal(shared_http.get("/v1/nonsense"), 404)["code"] == "unknown_url"
    assert refusal(shared_http.get("/nonsense"), 404)["code"] == "unknown_url"
    assert refusal(shared_http.get("/v1/files/"), 404)["type"] == "invalid_request_error"
    wrong_method = shared_http.put("/v1/batches")
    assert refusal(wrong_method, 405)["code"] == "method_not_allowed"
    assert wrong_method.headers["allow"]


@pytest.mark.parametrize("query", ["dry_run=1", "limit=3&Limit=4", "statuss=queued", "=1"])
def test_an_unknown_query_parameter_is_refused_rather_than_ignored(shared_http, query):
    error = refusal(shared_http.get(f"/v1/jobs?{query}"), 400)

    assert error["code"] == "unknown_parameter"
    assert error["param"] == query.split("&")[-1].split("=")[0]
    assert "limit" in error["message"]


def test_of_two_values_for_one_parameter_none_is_taken(shared_http):
    answer = shared_http.post("/v1/jobs?dry_run=1&dry_run=0", json={})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "dry_run"


def test_a_job_that_is_asked_for_with_an_unknown_parameter_does_not_run(http):
    refusal(http.post("/v1/jobs?dryrun=1", json=online()), 400)

    assert http.get("/v1/jobs").json()["data"] == []


def test_no_answer_is_taken_for_another_type(shared_http):
    for path in ("/v1/jobs", "/nonsense", "/healthz"):
        assert shared_http.get(path).headers["x-content-type-options"] == "nosniff"


def test_no_page_loads_scripts_from_elsewhere(shared_http):
    refusal(shared_http.get("/redoc"), 404)
    reference = shared_http.get("/docs", headers={"accept": "text/html"})
    assert "default-src 'self'" in reference.headers["content-security-policy"]
    assert "://" not in reference.text


@pytest.mark.parametrize(
    ("authorization", "says"),
    [
        (None, "No API key"),
        ("Basic abc", "must be 'Bearer'"),
        ("Bearer", "must be 'Bearer'"),
        ("Bearer sk-someone-elses", "Incorrect API key"),
        ("Bearer ns_live_abcdefgh_" + "x" * 38, "Incorrect API key"),
    ],
)
def test_without_a_valid_key_a_request_is_refused(shared_api, authorization, says):
    headers = {} if authorization is None else {"authorization": authorization}
    answer = httpx.get(f"{shared_api.url}/v1/models", headers=headers, trust_env=False)

    error = refusal(answer, 401)
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert says in str(error["message"])


def test_expired_revoked_and_tampered_keys_do_not_get_in(base_url, make_key, store):
    expired = make_key(expires_at=datetime.now(UTC) - timedelta(minutes=1))
    revoked, good = make_key(), make_key()
    with store.transaction() as tx:
        tx.keys.revoke(key_id(revoked) or "", tx.now())
    tampered = good[:-10] + ("A" if good[-10] != "A" else "B") + good[-9:]

    for key in (expired, revoked, tampered):
        client = openai.OpenAI(base_url=f"{base_url}/v1", api_key=key)
        with client, pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
        assert refused.value.code == "invalid_api_key"


def test_the_body_of_a_stranger_is_not_read(shared_api):
    answer = httpx.post(f"{shared_api.url}{CHAT}", content=b"{ this is not json", trust_env=False)

    refusal(answer, 401)


def test_a_body_under_a_forms_content_type_is_refused(shared_http):
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        error = refusal(shared_http.post(CHAT, content=b"{}", headers={"content-type": kind}), 400)
        assert (error["param"], error["code"]) == ("Content-Type", "invalid_content_type")


# -- HEAD --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/healthz", "/metrics", "/v1/models", "/v1/jobs", "/v1/jobs/job_none", CHAT]
)
def test_head_is_answered_as_get_is_without_a_body(shared_http, path):
    head, get = shared_http.head(path), shared_http.get(path)

    assert head.content == b""
    assert head.status_code == get.status_code
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers.get("allow") == get.headers.get("allow")
    assert path == "/metrics" or head.headers["content-length"] == get.headers["content-length"]


def test_head_of_a_stream_ends_at_once_and_that_of_a_file_has_its_length(http, client, worker):
    stored = client.files.create(file=("a.bin", b"x" * 300_000), purpose="user_data")
    job_id = http.post("/v1/jobs", json=online()).json()["id"]

    events = http.head(f"/v1/jobs/{job_id}/events")
    content = http.head(f"/v1/files/{stored.id}/content")

    assert (events.status_code, events.content) == (200, b"")
    assert events.headers["content-type"].startswith("text/event-stream")
    assert (content.status_code, content.headers["content-length"]) == (200, "300000")
    assert http.get("/healthz").status_code == 200  # the connection is still in step
