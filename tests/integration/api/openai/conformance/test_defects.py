"""A server that is wrong does not pass the checks of `nightshift conformance` that are about it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from conformance.checks import AREAS, completions, node, own, rates, responses, structured, uploads, webhooks
from conformance.outcomes import Outcome, Result
from conformance.registry import selected
from conformance.runner import Run
from conformance.session import Options
from tests.helpers.altering_proxy import (
    Alteration,
    Asked,
    Forward,
    Reply,
    accepting,
    altering,
    answering,
    changing,
    refusing_as,
    replacing,
    setting,
    without,
    wrapped,
)
from tests.integration.api.openai.conformance.conftest import one_of_each_area

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
ENDPOINTS = "/v1/webhook_endpoints"
MORE = pytest.mark.exhaustive
JSON = {"content-type": "application/json"}
NEWER = (completions, own, rates, responses, structured, uploads, webhooks)
ALL = [f"{area.name}.{check.name}" for area in AREAS for check in area.checks if area is not node.AREA]
QUICK_OF_NODE = [f"node.{check.name}" for check in node.AREA.checks if not check.is_slow]


def results_of(options: Options, only: list[str]) -> dict[str, Result]:
    results = Run(options).results(selected(AREAS, only))
    return {f"{result.area}.{result.name}": result for result in results}


def results_with(options: Options, only: list[str], alter: Alteration) -> dict[str, Result]:
    """The results of these checks on our API, altered so."""
    with altering(options.base_url, alter) as url:
        return results_of(replace(options, base_url=url), only)


def replying(path: str, data: object, method: str = "GET|POST|PATCH|DELETE", status: int = 200) -> Alteration:
    """Nothing is done on paths that match, and this is answered."""

    def alter(request: Asked, forward: Forward) -> Reply:
        is_meant = re.fullmatch(path, request.path) and re.fullmatch(method, request.method)
        return Reply(status, JSON).with_json(data) if is_meant else forward(request)

    return alter


def ignoring(field: str) -> Alteration:
    """The server never sees this field of a body."""

    def alter(request: Asked, forward: Forward) -> Reply:
        if not request.body.startswith(b"{"):
            return forward(request)
        body = json.loads(request.body)
        body.pop(field, None)
        return forward(replace(request, body=json.dumps(body).encode()))

    return alter


def with_header(name: str, value: str) -> Alteration:
    return wrapped(lambda reply: replace(reply, headers=reply.headers | {name: value}))


def without_call_ids(data: Any) -> Any:
    [choice] = data["choices"]
    for call in choice["message"]["tool_calls"]:
        call["id"] = None
    return data


def parts_as_sent(request: Asked, forward: Forward) -> Reply:
    """An upload's parts are joined in another order than the one named."""
    if request.path.endswith("/complete"):
        body = json.loads(request.body)
        request = replace(request, body=json.dumps(body | {"part_ids": body["part_ids"][::-1]}).encode())
    return forward(request)


def showing_secrets() -> Alteration:
    """The secret of the latest webhook endpoint is in every later answer about one."""
    secrets: list[str] = []

    def change(data: dict[str, Any]) -> dict[str, Any]:
        secrets.extend([data["signing_secret"]] if "signing_secret" in data else [])
        return data | {"signing_secret": secrets[-1]}

    return changing(f"{ENDPOINTS}(/[^/]+)?", change, "GET|POST")


def never_deleting(request: Asked, forward: Forward) -> Reply:
    if request.method == "DELETE":
        return Reply(200, JSON).with_json({"id": "x", "deleted": True})
    return forward(request)


def first_page_again(request: Asked, forward: Forward) -> Reply:
    return forward(replace(request, path=re.sub("after=[^&]*&?", "", request.path)))


def storing_nothing(request: Asked, forward: Forward) -> Reply:
    if not request.body.startswith(b"{"):
        return forward(request)
    body = json.loads(request.body) | {"store": False}
    return forward(replace(request, body=json.dumps(body).encode()))


def ignoring_queries(request: Asked, forward: Forward) -> Reply:
    return forward(replace(request, path=request.path.partition("?")[0]))


def last_page(data: dict[str, object]) -> dict[str, object]:
    return data | {"has_more": False, "data": list(data["data"])[:1]}


def detail_envelope(reply: Reply) -> Reply:
    return replace(reply, status=422 if reply.status == 400 else reply.status).with_json({"detail": "no"})


OTHER_KEYS = replacing(".*", b'{\\"even\\"', b'{\\"odd\\"')
DEFECTS: dict[str, tuple[Alteration, list[str]]] = {
    "models without an object": (setting("/v1/models", object=None), ["models.listed-and-found"]),
    "another model is found": (setting("/v1/models/.+", id="x"), ["models.listed-and-found"]),
    "files have no status": (
        setting("/v1/files.*", status=None),
        ["files.bytes-uploaded", "files.path-uploaded", "files.tuple-uploaded", "files.described"],
    ),
    "file names are lost": (
        setting("/v1/files", "POST", filename="upload"),
        ["files.path-uploaded", "files.tuple-uploaded"],
    ),
    "files never expire": (setting("/v1/files", "POST", expires_at=None), ["files.expires-after"]),
    "any expiry is accepted": (accepting(b"anchor"), ["files.expires-too-soon"]),
    "files need no purpose": (accepting(b"x.jsonl"), ["files.purpose-missing"]),
    "a cursor is ignored": (first_page_again, ["files.pages", "batches.pages", "batches.cursor"]),
    "lists end after an object": (
        changing(r"/v1/(files|batches)\?.*", last_page),
        ["files.pages", "batches.pages"],
    ),
    "content has other line ends": (replacing("/v1/files/.+/content", b"\n", b"\r\n"), ["files.content"]),
    "deleted files stay": (never_deleting, ["files.deleted"]),
    "batches lose metadata": (setting("/v1/batches.*", metadata=None), ["batches.created"]),
    "counts are null": (
        setting("/v1/batches", "POST", request_counts={"total": None}),
        ["batches.counts"],
    ),
    "any limit is accepted": (ignoring_queries, ["batches.limits"]),
    "any window is accepted": (accepting(b"soon"), ["batches.refused"]),
    "repeated creates make two": (
        changing("/v1/batches", lambda data: data | {"id": f"{data['id']}{id(data)}"}, "POST"),
        ["batches.repeated"],
    ),
    "chats without usage": (
        setting("/v1/chat/completions", usage=None),
        ["chat.answered"],
    ),
    "chats of another kind": (
        setting("/v1/chat/completions", object="chat"),
        ["chat.answered", "chat.content-parts"],
    ),
    "streams without a role": (
        replacing("/v1/chat/.*", b'"role":', b'"x":'),
        ["chat.streamed", "chat.answered"],
    ),
    "streams that just stop": (replacing("/v1/chat/.*", b"data: [DONE]", b": end"), ["chat.stream-form"]),
    "streams of another type": (
        wrapped(lambda reply: replace(reply, headers=reply.headers | {"content-type": "text/plain"})),
        ["chat.stream-form"],
    ),
    "usage is never streamed": (replacing("/v1/chat/.*", b'"usage":{', b'"x":{'), ["chat.stream-usage"]),
    "any temperature is accepted": (accepting(b"temperature"), ["chat.temperature-wrong"]),
    "stream_options are accepted alone": (accepting(b"stream_options"), ["chat.stream-options-alone"]),
    "tool_choice is accepted alone": (accepting(b"tool_choice"), ["chat.tool-choice-alone"]),
    "vectors in another order": (
        changing("/v1/embeddings", lambda data: data | {"data": data["data"][::-1]}),
        ["embeddings.order"],
    ),
    "vectors are missing": (
        changing("/v1/embeddings", lambda data: data | {"data": data["data"][:1]}),
        ["embeddings.default-encoding", "embeddings.token-ids"],
    ),
    "empty inputs are accepted": (accepting(b'"input":[]'), ["embeddings.empty"]),
    "FastAPI's own errors": (
        refusing_as(detail_envelope),
        [
            "errors.unknown-route",
            "errors.wrong-method",
            "errors.wrong-key",
            "errors.unknown-model",
            "errors.no-object",
            "models.unknown",
            "batches.unknown",
            "chat.messages-missing",
        ],
    ),
    "no request ids": (wrapped(without("x-request-id")), ["errors.request-id"]),
    "completions of another kind": (setting(COMPLETIONS, object="chat.completion"), ["completions.answered"]),
    "the last prompt is lost": (
        changing(COMPLETIONS, lambda data: data | {"choices": data["choices"][:2]}),
        ["completions.several", "completions.several-choices"],
    ),
    "a streamed prompt never ends": (
        replacing(COMPLETIONS, b'"finish_reason":"stop"', b'"finish_reason":null'),
        ["completions.streamed", "completions.answered"],
    ),
    "any prompt is accepted": (accepting(b'{"text":'), ["completions.prompt-wrong"]),
    "echo is ignored": (
        replying(COMPLETIONS, {"choices": [{"index": 0, "text": " eight"}]}),
        ["completions.echo"],
    ),
    "best_of adds choices": (
        replying(COMPLETIONS, {"choices": [{"index": 0, "text": ""}, {"index": 1, "text": ""}]}),
        ["completions.best-of"],
    ),
    "responses without usage": (
        setting(RESPONSES, usage=None),
        ["responses.answered", "responses.items", "responses.tool-result"],
    ),
    "a response does not say why it is incomplete": (
        setting(RESPONSES, status="incomplete"),
        ["responses.incomplete"],
    ),
    "events are not numbered": (
        replacing(RESPONSES, b'"sequence_number":', b'"sequence_number":1'),
        ["responses.streamed"],
    ),
    "the last event is missing": (
        replacing(RESPONSES, b"response.completed", b"response.in_progress"),
        ["responses.stream-helper", "responses.streamed"],
    ),
    "objects of another schema": (
        OTHER_KEYS,
        [
            "responses.text-format",
            "responses.tool-called",
            "structured.schema",
            "structured.schema-streamed",
            "structured.tool-streamed",
        ],
    ),
    "arguments are streamed twice": (
        replacing(RESPONSES, b'"delta":"{', b'"delta":"{{'),
        ["responses.tool-streamed"],
    ),
    "input is not needed": (accepting(b'{"model":"org/parrot"}'), ["responses.input-missing"]),
    "any item is accepted": (accepting(b"no_such_"), ["responses.item-unknown"]),
    "stored state is ignored": (ignoring("previous_response_id"), ["responses.previous-unknown"]),
    "store is ignored": (storing_nothing, ["responses.stored"]),
    "background is ignored": (
        replying(RESPONSES, {"id": "resp_x", "background": False}),
        ["responses.background"],
    ),
    "any format is accepted": (accepting(b"no-such-type"), ["structured.schema-invalid"]),
    "calls have no id": (
        changing(CHAT, without_call_ids),
        ["structured.tool-called", "structured.tool-required"],
    ),
    "the results of calls are refused": (
        replying(CHAT, {"error": {"message": "no", "type": "x"}}, "POST", 400),
        ["structured.tool-result"],
    ),
    "any tool is accepted": (accepting(b"tools"), ["structured.tool-wrong"]),
    "parts are joined in another order": (parts_as_sent, ["uploads.completed", "uploads.chunked"]),
    "an upload may be short": (accepting(b"part_ids"), ["uploads.too-short", "uploads.part-unknown"]),
    "a cancelled upload stays": (setting("/v1/uploads/.*/cancel", status="pending"), ["uploads.cancelled"]),
    "any upload is cancelled": (accepting(b"no_such_upload"), ["uploads.unknown"]),
    "secrets are shown again": (showing_secrets(), ["webhooks.created"]),
    "an update changes nothing": (
        setting(f"{ENDPOINTS}/[^/]+", "GET", name="conformance"),
        ["webhooks.updated"],
    ),
    "an endpoint has no secret": (
        replacing(ENDPOINTS, b"whsec_", b""),
        ["webhooks.created", "webhooks.unwrapped"],
    ),
    "endpoints are listed twice": (
        changing(rf"{ENDPOINTS}\?.*", lambda data: data | {"data": data["data"] * 2}),
        ["webhooks.listed"],
    ),
    "deleted things stay": (
        never_deleting,
        ["webhooks.deleted", "nightshift.job-deleted", "nightshift.batch-kept"],
    ),
    "no types of events": (setting("/v1/webhook_event_types", data=[]), ["webhooks.event-types"]),
    "any address is accepted": (accepting(b"no url"), ["webhooks.refused"]),
    "rotations answer with a secret of their own": (
        changing(f"{ENDPOINTS}/.*/rotate_secret", lambda data: data | {"signing_secret": "whsec_b3RoZXI="}),
        ["webhooks.rotated", "webhooks.rotated-keeping"],
    ),
    "no limits that count": (with_header("x-ratelimit-remaining-tokens", "much"), ["rates.limits"]),
    "no durations": (with_header("x-ratelimit-reset-requests", "60"), ["rates.limits"]),
    "more is left than there is": (
        with_header("x-ratelimit-remaining-requests", "10001"),
        ["rates.limits"],
    ),
    "a time with a unit": (with_header("openai-processing-ms", "5 ms"), ["rates.processing"]),
    "jobs are not listed": (setting(r"/v1/jobs\?.*", data=[]), ["nightshift.job"]),
    "a conflict is repeated": (wrapped(without("x-should-retry")), ["nightshift.batch-kept"]),
    "changes are lost": (setting("/v1/batches/.*", metadata=None), ["nightshift.job-changed"]),
    "any order is accepted": (accepting(b"random"), ["nightshift.output-order-unknown"]),
}
NODE_DEFECTS: dict[str, tuple[Alteration, list[str]]] = {
    "answers have no usage": (
        setting("/v1/(chat/completions|completions|responses)", usage=None),
        ["node.chat", "node.completions", "node.response"],
    ),
    "objects of another schema": (OTHER_KEYS, ["node.schema", "node.tool-streamed"]),
    "any temperature is accepted": (accepting(b"temperature"), ["node.chat-refused"]),
    "an endpoint has no secret": (replacing(ENDPOINTS, b'"whsec_', b'"whsec_AAAA'), ["node.webhook"]),
}


@pytest.mark.parametrize("defect", [*one_of_each_area(DEFECTS)])
def test_a_defect_is_found_by_the_checks_that_are_about_it(options, defect):
    assert_found(options, DEFECTS, defect)


@pytest.mark.parametrize("defect", [*one_of_each_area(NODE_DEFECTS)])
def test_a_defect_is_found_with_the_node_client_too(options, node_client, monkeypatch, defect):
    monkeypatch.setenv("NODE_PATH", node_client)
    assert_found(options, NODE_DEFECTS, defect)


def assert_found(options: Options, defects: Mapping[str, tuple[Alteration, list[str]]], defect: str) -> None:
    alter, finding = defects[defect]
    results = results_with(options, finding, alter)

    outcomes = {name: result.outcome for name, result in results.items()}
    assert outcomes == dict.fromkeys(finding, Outcome.FAILED), results
    assert all("OpenAI" in result.detail or "client" in result.detail for result in results.values())


def test_every_quick_check_of_the_newer_areas_is_seen_to_fail():
    areas = [module.AREA for module in NEWER]
    quick = {f"{area.name}.{check.name}" for area in areas for check in area.checks if not check.is_slow}
    assert quick <= {name for _, finding in DEFECTS.values() for name in finding}


def test_a_model_that_writes_to_its_limit_is_no_defect(options):
    """The client puts no response together that was cut off."""
    cut_off = replacing("/v1/responses", b"response.completed", b"response.incomplete")

    [result] = results_with(options, ["responses.stream-helper"], cut_off).values()

    assert result.outcome is Outcome.PASSED


NONSENSE: dict[str, Callable[[Asked], Reply | None]] = {
    "HTML": lambda request: Reply(200, {"content-type": "text/html"}, b"<html>welcome</html>"),
    "JSON that is no JSON": lambda request: Reply(200, JSON, b'{"id": '),
    "a list": lambda request: Reply(200, JSON, b"[]"),
    "an empty object": lambda request: Reply(200, JSON, b"{}"),
    "wrong types": lambda request: Reply(
        200, JSON, b'{"id": 7, "object": [], "data": "x", "choices": 3, "status": {}, "usage": "much"}'
    ),
    "server errors": lambda request: Reply(500, JSON, b'{"error": "no"}'),
    "closed connections": lambda request: None,
}
# With these a check may pass by chance; the others stop the client itself, in every check alike.
TELLING = ("an empty object", "wrong types", "server errors")
ALIKE = ("JSON that is no JSON", "a list", "server errors")
FIRSTS = [f"{area.name}.{area.checks[0].name}" for area in AREAS if area is not node.AREA]


def results_at(
    options: Options, only: list[str], answer: Callable[[Asked], Reply | None]
) -> dict[str, Result]:
    """The results of these checks on a server that gives this answer to everything."""
    with answering(answer) as url:
        return results_of(replace(options, base_url=url), only)


@pytest.mark.parametrize(
    "nonsense", [pytest.param(name, marks=[MORE] if name in ALIKE else []) for name in NONSENSE]
)
def test_no_check_passes_against_nonsense_and_none_ends_in_a_traceback(options, nonsense):
    results = results_at(options, ALL if nonsense in TELLING else FIRSTS, NONSENSE[nonsense])

    assert [name for name, result in results.items() if result.outcome is Outcome.PASSED] == []
    assert all(result.detail and "\n" not in result.detail for result in results.values())


def test_no_check_of_the_node_client_passes_against_nonsense(options, node_client, monkeypatch):
    monkeypatch.setenv("NODE_PATH", node_client)
    results = results_at(options, QUICK_OF_NODE, NONSENSE["wrong types"])

    assert [name for name, result in results.items() if result.outcome is not Outcome.FAILED] == [
        "node.key-refused"  # the server accepts any key: not offered
    ]
    assert all(result.detail and "\n" not in result.detail for result in results.values())


def test_routes_that_are_missing_are_not_offered(options):
    missing = Reply(404, JSON, b'{"detail": "Not Found"}')
    results = results_at(options, ["files", "batches", "chat", "embeddings"], lambda request: missing)

    assert {result.outcome for result in results.values()} == {Outcome.NOT_OFFERED}
