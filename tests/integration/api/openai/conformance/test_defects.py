"""A server that is wrong does not pass the checks of `nightshift conformance` that are about it."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.checks import AREAS, node
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
from tests.integration.api.fake_worker import CHAT_MODEL, EMBEDDING_MODEL
from tests.integration.api.openai.conformance.conftest import one_of_each_area

ALL = [f"{area.name}.{check.name}" for area in AREAS for check in area.checks if area is not node.AREA]
QUICK_OF_NODE = [f"node.{check.name}" for check in node.AREA.checks if not check.is_slow]
HURRY = Options(
    "",
    "none",
    CHAT_MODEL,
    EMBEDDING_MODEL,
    check_time_limit_s=120.0,  # the machine may be busy, and nothing here waits for long
    batch_time_limit_s=0.1,
    poll_interval_s=0.05,
    settle_time_limit_s=0.0,
    retries=0,
)


def results_of(options: Options, only: list[str]) -> dict[str, Result]:
    results = Run(options).results(selected(AREAS, only))
    return {f"{result.area}.{result.name}": result for result in results}


def first_page_again(request: Asked, forward: Forward) -> Reply:
    return forward(replace(request, path=re.sub("after=[^&]*&?", "", request.path)))


def ignoring_queries(request: Asked, forward: Forward) -> Reply:
    return forward(replace(request, path=request.path.partition("?")[0]))


def never_deleting(request: Asked, forward: Forward) -> Reply:
    if request.method == "DELETE" and "/files/" in request.path:
        return Reply(200, {"content-type": "application/json"}, b'{"id": "x", "deleted": true}')
    return forward(request)


def last_page(data: dict[str, object]) -> dict[str, object]:
    return data | {"has_more": False, "data": list(data["data"])[:1]}


def detail_envelope(reply: Reply) -> Reply:
    return replace(reply, status=422 if reply.status == 400 else reply.status).with_json({"detail": "no"})


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
}


@pytest.mark.parametrize("defect", [*one_of_each_area(DEFECTS)])
def test_a_defect_is_found_by_the_checks_that_are_about_it(options, defect):
    alter, finding = DEFECTS[defect]
    with altering(options.base_url, alter) as url:
        results = results_of(replace(options, base_url=url), finding)

    outcomes = {name: result.outcome for name, result in results.items()}
    assert outcomes == dict.fromkeys(finding, Outcome.FAILED)
    assert all("OpenAI" in result.detail or "client" in result.detail for result in results.values())


JSON = {"content-type": "application/json"}
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
FIRSTS = [f"{area.name}.{area.checks[0].name}" for area in AREAS if area is not node.AREA]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_no_check_passes_against_nonsense_and_none_ends_in_a_traceback(nonsense):
    with answering(NONSENSE[nonsense]) as url:
        results = results_of(replace(HURRY, base_url=url), ALL if nonsense in TELLING else FIRSTS)

    assert [name for name, result in results.items() if result.outcome is Outcome.PASSED] == []
    assert all(result.detail and "\n" not in result.detail for result in results.values())


def test_no_check_of_the_node_client_passes_against_nonsense(node_client, monkeypatch):
    monkeypatch.setenv("NODE_PATH", node_client)
    with answering(NONSENSE["wrong types"]) as url:
        results = results_of(replace(HURRY, base_url=url), QUICK_OF_NODE)

    assert [name for name, result in results.items() if result.outcome is not Outcome.FAILED] == [
        "node.key-refused"  # the server accepts any key: not offered
    ]
    assert all(result.detail and "\n" not in result.detail for result in results.values())


def test_routes_that_are_missing_are_not_offered():
    with answering(lambda request: Reply(404, JSON, b'{"detail": "Not Found"}')) as url:
        results = results_of(replace(HURRY, base_url=url), ["files", "batches", "chat", "embeddings"])

    assert {result.outcome for result in results.values()} == {Outcome.NOT_OFFERED}
