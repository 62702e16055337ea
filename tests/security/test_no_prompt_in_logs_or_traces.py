"""No log and no span shows what a tenant sent or was answered, nor a key, and no span what a client's trace
headers say: the service as real processes at DEBUG, marker strings in every place of a request, every kind of
failure, and then every log is searched, and all that the collector got.
"""

import base64
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from nightshift.tenants.keys import Scope
from tests.faults.kit.launch import running
from tests.faults.kit.outages import killed, stopped
from tests.faults.kit.service import Parts, Service
from tests.helpers.otlp import Collector, collector
from tests.helpers.receiver import says
from tests.helpers.waiting import wait_for
from tests.integration.api.conftest import insert_key
from tests.integration.objectstore.s3_faults import ANY, Refused, Swallowed
from tests.integration.servers import RAM_DISK
from tests.security.failures import (
    CHAT,
    INVALID_BODIES,
    KINDS,
    TRACE,
    TRACE_KINDS,
    Caller,
    chat,
    csv,
    encoded,
    failing_serialization,
    is_in,
    mark,
    parquet,
    presigned,
    refusing_rows,
    rows,
    template,
    webhook_secret,
)

STREAMED = ("chat.completion.chunk", "response.output_text")  # of the frames of a stream
SPANS = {"webhook", "POST /v1/chat/completions", "shard", "chat fake"}
# FastAPI's own telemetry would have queries and the messages of exceptions.
TELEMETRY = ("FASTAPI_OTEL_AUTO_CONFIGURE", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")


@pytest.fixture
def traces() -> Iterator[Collector]:
    with collector() as received:
        yield received


@pytest.fixture
def service(traces: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    for name, value in (traces.variables | dict.fromkeys(TELEMETRY, "true")).items():
        monkeypatch.setenv(name, value)
    parts = Parts(database="postgresql", objects="moto", s3_faults_seed=1)
    with tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder:
        with running(Path(folder), parts, LOG_LEVEL="debug") as service:
            yield service


def echo(service: Service):
    """Answers with 500 and what was sent."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        says(500, service.receiver.requests[-1].body + handler.path.encode())(handler)

    return answer


def said(service: Service) -> dict[str, str]:
    """Every log that a process of ours has written, by its name."""
    return {path.name: path.read_text(errors="replace") for path in (service.folder / "logs").rglob("*.log*")}


def has_said(service: Service, words: str) -> None:
    wait_for(f"a log says {words}", lambda: any(words in log for log in said(service).values()))


def test_no_log_or_trace_has_what_a_tenant_sent_or_was_answered(service: Service, traces: Collector) -> None:
    service.receiver.answer = echo(service)
    caller = Caller(service)
    secrets = [service.api_key, webhook_secret(), *map(mark, KINDS)]

    send_what_is_answered_or_refused(service, caller, secrets)
    run_inputs_with_rows_that_fail(service, caller)
    wait_for("spans of every kind", lambda: {span.name for span in traces.spans} >= SPANS)
    failed = {"webhook", "chat fake"}
    wait_for("and of errors", lambda: {span.name for span in traces.spans if span.is_error} >= failed)
    take_parts_of_the_service_away(service, caller)
    let_processes_die_or_go(service, caller)

    assert {200, 202, 400, 401, 500, 503} <= set(caller.statuses), caller.statuses
    logs = said(service)
    assert {f"{role}.log" for role in service.kept} <= logs.keys()
    shown = [
        f"{name}: {line}"
        for name, log in logs.items()
        for line in log.splitlines()
        if any(word in line for word in (*secrets, *STREAMED))
    ]
    assert not shown, "\n".join(shown)
    assert {span.process for span in traces.spans} == {"api", "scheduler", "worker"}
    assert TRACE in {span.trace_id for span in traces.spans}
    assert {request.path for request in traces.receiver.requests} == {"/v1/traces"}
    assert [word for word in (*secrets, *map(mark, TRACE_KINDS)) if is_in(word, traces.bodies)] == []


def send_what_is_answered_or_refused(service: Service, caller: Caller, secrets: list[str]) -> None:
    """Adds the answer and the keys that were made to what may not be seen."""

    def made(path: str, **request: Any) -> Any:
        answer = caller.send("POST", path, **request)
        assert answer is not None
        assert answer.is_success, answer.text
        return answer.json()

    key = insert_key(service.store, "admin", scopes=frozenset({Scope.READ, Scope.SUBMIT, Scope.ADMIN}))
    admin = {"authorization": f"Bearer {key}"}
    secrets += [key, made(CHAT, json=chat())["choices"][0]["message"]["content"]]
    caller.send("POST", f"{CHAT}{presigned()}", json=chat())
    caller.send("POST", CHAT, json=chat(stream=True))
    caller.send("POST", CHAT, json=chat("!fail"))
    caller.send("POST", "/v1/responses", json={"model": "fake", "input": mark("prompt"), "stream": True})
    for body in INVALID_BODIES:
        caller.send("POST", CHAT, content=encoded(body), headers={"content-type": "application/json"})
    caller.send("POST", CHAT, content=f'{{"model": "{mark("unparsed")}'.encode())
    caller.send("POST", "/v1/embeddings", json={"model": "fake", "input": [mark("prompt"), [mark("prompt")]]})
    caller.send("GET", "/v1/jobs", params={"after": mark("prompt"), mark("body-key"): mark("prompt")})
    caller.send("GET", "/v1/jobs", headers={"authorization": f"Bearer sk-ns-{mark('wrong-key')}"})
    caller.send("POST", f"/v1/{mark('path')}", json=chat())
    caller.send("POST", f"/v1/jobs/{mark('path')}/cancel")
    caller.send("POST", f"/v1/tenants/admin/keys?{mark('url-query')}=1", json={"name": mark("user")})
    made("/v1/tenants", json={"name": "another"}, headers=admin)
    secrets.append(made("/v1/tenants/another/keys", json={"name": mark("user")}, headers=admin)["key"])


def run_inputs_with_rows_that_fail(service: Service, caller: Caller) -> None:
    """Invalid rows, a row that fails, and one that crashes every worker."""
    in_rows = f"in/{mark('path')}.jsonl"
    service.put_file("in/unread.jsonl", rows())
    service.put_file("in/away.jsonl", rows())
    service.put_file(in_rows, rows("!fail", "!raise"))
    service.put_file("in/rows.csv", csv())
    service.put_file("in/rows.parquet", parquet())
    broken = template(seed="{{text}}", **{mark("body-key"): f"{{{{{mark('column')}}}}}"})
    jobs = [
        caller.bulk_job(in_rows),
        caller.bulk_job("in/rows.csv", template=template()),
        caller.bulk_job("in/rows.csv", template=template(user="{{" + mark("template"))),
        caller.bulk_job("in/rows.parquet", template=broken),
        caller.bulk_job("in/rows.parquet", template=template(user="{{nothing}}")),
        caller.bulk_job("in/rows.parquet", template=template(temperature="{{text}}"), name=mark("user")[:90]),
        caller.online_job("!abort"),
        caller.online_job("!fail"),
    ]
    answers = [caller.send("POST", "/v1/jobs", json=job) for job in jobs]
    ids = [answer.json()["id"] for answer in answers if answer is not None and answer.is_success]
    assert len(ids) >= 5, caller.statuses
    wait_for("the jobs have ended", lambda: all(service.job(id).state.is_terminal for id in ids), 120)
    has_said(service, "webhook attempted")


def take_parts_of_the_service_away(service: Service, caller: Caller) -> None:
    assert service.s3_front is not None
    with refusing_rows(service, "job", "request", "file", "webhook_endpoint"):
        caller.one_of_each()
    has_said(service, "request failed")
    with failing_serialization(service, "request"):
        caller.send("POST", CHAT, json=chat())
    with service.held() as hold, refusing_rows(service, "result"):
        caller.send("POST", "/v1/jobs", json=caller.online_job("!wait"))
        hold.unlink()
        has_said(service, "answer not recorded")
    with stopped(service, "immediate"):
        caller.one_of_each()
    service.wait_until_ready()
    with killed(service):
        caller.one_of_each()
    for fault in (Refused(403, "AccessDenied"), Swallowed()):
        service.s3_front.set(ANY, fault)
        caller.send(
            "POST", "/v1/files", files={"file": (mark("filename"), rows())}, data={"purpose": "batch"}
        )
        caller.send("POST", "/v1/jobs", json=caller.bulk_job("in/away.jsonl"))
        service.s3_front.heal()


def let_processes_die_or_go(service: Service, caller: Caller) -> None:
    """They die in the middle of work, and are asked to go."""
    for point in ("api.committed", "worker.claimed", "worker.row_heard"):
        service.put_file(f"in/{point}.jsonl", rows())
        service.arm(point)
        caller.send("POST", "/v1/jobs", json=caller.bulk_job(f"in/{point}.jsonl"))
        caller.send("POST", CHAT, json=chat())
        service.wait_for_death(point)
        service.wait_until_ready()
    with service.held():
        caller.send("POST", "/v1/jobs", json=caller.online_job("!wait"))
        for role in list(service.kept):
            service.stop(role)


@pytest.mark.parametrize("before", range(5))
def test_the_search_finds_words_wherever_they_are(before: int) -> None:
    text = b"x" * before + mark("prompt").encode() + b"yz"

    assert is_in(mark("prompt"), [text])
    assert is_in(mark("prompt"), [b"..." + base64.b64encode(text)])
    assert is_in(mark("prompt"), [base64.urlsafe_b64encode(text)])
    assert not is_in(mark("prompt"), [base64.b64encode(b"x" * before + mark("promised").encode())])
