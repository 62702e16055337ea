"""No span shows what a tenant sent or was answered, nor a key, nor what a client's trace headers say: real
processes, marker strings in every place, and all that the collector got is searched.
"""

import base64
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from nightshift.tenants.keys import Scope
from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts, Service
from tests.helpers.otlp import Collector, collector
from tests.helpers.receiver import says
from tests.helpers.waiting import wait_for
from tests.integration.api.conftest import insert_key
from tests.integration.servers import RAM_DISK
from tests.security.failures import (
    CHAT,
    INVALID_BODIES,
    KINDS,
    Caller,
    chat,
    csv,
    is_in,
    mark,
    parquet,
    rows,
    template,
    webhook_secret,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PRESIGNED = "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={0}&X-Amz-Signature={0}&sig={0}&token={0}#{0}"
HEADERS = {
    "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
    "tracestate": f"vendor={mark('tracestate')}",
    "baggage": f"user={mark('baggage')}",
    "user-agent": mark("user-agent"),
    "x-forwarded-for": mark("forwarded"),
}
HEADER_KINDS = ("tracestate", "baggage", "user-agent", "forwarded", "path", "signature")


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collector() as received:
        yield received


@pytest.fixture(scope="module")
def service(traces: Collector) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in traces.variables.items():
                patch.setenv(name, value)
            # FastAPI's own telemetry would have queries and the messages of exceptions.
            patch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
            patch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
            with running(Path(folder), Parts()) as service:
                yield service


class SecretPaths(Caller):
    """Its webhooks' URLs have secrets in their paths and queries."""

    @property
    def url(self) -> str:
        base = self.service.receiver.numeric_url
        return f"{base}/services/{mark('path')}{PRESIGNED.format(mark('signature')).partition('#')[0]}"


def echo(service: Service):
    """Answer with 500 and what was sent."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        says(500, service.receiver.requests[-1].body + handler.path.encode())(handler)

    return answer


def test_no_span_has_what_a_tenant_sent_or_was_answered_or_a_header_said(
    service: Service, traces: Collector
) -> None:
    service.receiver.answer = echo(service)
    caller = SecretPaths(service)
    key = insert_key(service.store, "other", scopes=frozenset({Scope.READ, Scope.SUBMIT}))
    secrets = [key, service.api_key, webhook_secret(), *map(mark, (*KINDS, *HEADER_KINDS))]

    answered = caller.send("POST", CHAT, json=chat(), headers=HEADERS)
    assert answered is not None
    assert answered.is_success, answered.text
    secrets.append(answered.json()["choices"][0]["message"]["content"])
    caller.send("POST", f"{CHAT}{PRESIGNED.format(mark('signature'))}", json=chat(), headers=HEADERS)
    caller.send("POST", CHAT, json=chat(stream=True), headers=HEADERS)
    caller.send("POST", CHAT, json=chat("!fail"), headers=HEADERS)
    for body in INVALID_BODIES:
        content = str(body).encode(errors="backslashreplace")
        caller.send("POST", CHAT, content=content, headers=HEADERS | {"content-type": "application/json"})
    caller.send("POST", f"/v1/{mark('path')}", json=chat(), headers=HEADERS)
    caller.send("POST", f"/v1/jobs/{mark('path')}/cancel", headers=HEADERS)
    bearer = {"authorization": f"Bearer sk-ns-{mark('wrong-key')}"}
    caller.send("POST", CHAT, json=chat(), headers=HEADERS | bearer)

    service.put_file(f"in/{mark('filename')}.jsonl", rows("!fail", "!raise"))
    service.put_file("in/rows.csv", csv())
    service.put_file("in/rows.parquet", parquet())
    jobs = [
        caller.bulk_job(f"in/{mark('filename')}.jsonl"),
        caller.bulk_job("in/rows.csv", template=template()),
        caller.bulk_job("in/rows.parquet", template=template(user="{{nothing}}")),
        caller.bulk_job("in/rows.parquet", template=template(temperature="{{text}}"), name=mark("user")[:90]),
        caller.online_job("!fail"),
    ]
    ids = []
    for job in jobs:
        made = caller.send("POST", "/v1/jobs", json=job, headers=HEADERS)
        if made is not None and made.is_success:
            ids.append(made.json()["id"])
    assert len(ids) >= 3, caller.statuses
    with service.client() as client:
        wait_for("the jobs have ended", lambda: all(client.get_job(id).state.is_terminal for id in ids), 120)
    failed = {"webhook", "POST /v1/chat/completions", "shard", "chat fake"}
    wait_for("spans of every kind have come", lambda: failed <= {span.name for span in traces.spans})
    wait_for(
        "and of errors",
        lambda: {"webhook", "chat fake"} <= {span.name for span in traces.spans if span.is_error},
    )
    for role in list(service.kept):
        service.stop(role)

    assert {span.process for span in traces.spans} == {"api", "scheduler", "worker"}
    assert TRACE in {span.trace_id for span in traces.spans}
    assert {request.path for request in traces.receiver.requests} == {"/v1/traces"}
    assert [word for word in secrets if is_in(word, traces.bodies)] == []


@pytest.mark.parametrize("before", range(5))
def test_the_search_finds_words_wherever_they_are(before: int) -> None:
    text = b"x" * before + mark("prompt").encode() + b"yz"

    assert is_in(mark("prompt"), [text])
    assert is_in(mark("prompt"), [b"..." + base64.b64encode(text)])
    assert is_in(mark("prompt"), [base64.urlsafe_b64encode(text)])
    assert not is_in(mark("prompt"), [base64.b64encode(b"x" * before + mark("promised").encode())])
