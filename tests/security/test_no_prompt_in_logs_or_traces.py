"""No log shows what a tenant sent or was answered, nor a key: the service as real processes at DEBUG, marker
strings in every place of a request, every kind of failure, and then every log is searched, and every trace.
"""

import json
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

import pytest

from nightshift.tenants.keys import Scope
from tests.faults.kit.launch import running
from tests.faults.kit.outages import killed, stopped
from tests.faults.kit.service import Parts, Service
from tests.helpers.otlp import Collector, collector
from tests.helpers.waiting import wait_for
from tests.integration.api.conftest import insert_key
from tests.integration.objectstore.s3_faults import ANY, Refused, Swallowed
from tests.integration.servers import RAM_DISK
from tests.security.failures import (
    CHAT,
    INVALID_BODIES,
    KINDS,
    Caller,
    chat,
    csv,
    failing_serialization,
    is_in,
    mark,
    parquet,
    refusing_rows,
    rows,
    template,
    webhook_secret,
)

SETTINGS: Final = {"LOG_LEVEL": "debug"}
STREAMED: Final = ("chat.completion.chunk", "response.output_text")  # of the frames of a stream


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collector() as received:
        yield received


@pytest.fixture(scope="module")
def service(traces: Collector) -> Iterator[Service]:
    parts = Parts(database="postgresql", objects="moto", s3_faults_seed=1)
    with (
        tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in traces.variables.items():
            patch.setenv(name, value)
        with running(Path(folder), parts, **SETTINGS) as service:
            yield service


@pytest.fixture
def caller(service: Service) -> Caller:
    return Caller(service)


def echo(service: Service):
    """Answer with 500 and what was sent."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = service.receiver.requests[-1].body + handler.path.encode()
        handler.send_response(500)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def said(service: Service) -> dict[str, str]:
    """Every log that a process of ours has written, by its name."""
    return {path.name: path.read_text(errors="replace") for path in (service.folder / "logs").rglob("*.log*")}


def has_said(service: Service, words: str) -> None:
    wait_for(f"a log says {words}", lambda: any(words in log for log in said(service).values()))


def test_no_log_or_trace_has_what_a_tenant_sent_or_was_answered(
    service: Service, caller: Caller, traces: Collector
) -> None:
    service.receiver.answer = echo(service)
    key = insert_key(service.store, "admin", scopes=frozenset({Scope.READ, Scope.SUBMIT, Scope.ADMIN}))
    secrets = [key, service.api_key, webhook_secret(), *map(mark, KINDS)]

    # The service is well, and what it is sent is not.
    answered = caller.send("POST", CHAT, json=chat())
    assert answered is not None
    assert answered.is_success, answered.text
    secrets.append(answered.json()["choices"][0]["message"]["content"])
    caller.send("POST", CHAT, json=chat(stream=True))
    caller.send("POST", "/v1/responses", json={"model": "fake", "input": mark("prompt"), "stream": True})
    for body in INVALID_BODIES:
        caller.send("POST", CHAT, content=encoded(body), headers={"content-type": "application/json"})
    caller.send("POST", CHAT, content=f'{{"model": "{mark("unparsed")}'.encode())
    caller.send("POST", "/v1/embeddings", json={"model": "fake", "input": [mark("prompt"), [mark("prompt")]]})
    caller.send("GET", "/v1/jobs", params={"after": mark("prompt"), mark("body-key"): mark("prompt")})
    caller.send("GET", "/v1/jobs", headers={"authorization": f"Bearer sk-ns-{mark('wrong-key')}"})
    caller.send("POST", f"/v1/tenants/admin/keys?{mark('url-query')}=1", json={"name": mark("user")})
    made = caller.send(
        "POST", "/v1/tenants", json={"name": "another"}, headers={"authorization": f"Bearer {key}"}
    )
    assert made is not None
    assert made.is_success, made.text
    new_key = caller.send(
        "POST",
        "/v1/tenants/another/keys",
        json={"name": mark("user")},
        headers={"authorization": f"Bearer {key}"},
    )
    assert new_key is not None
    secrets.append(new_key.json()["key"])

    # Inputs with invalid rows, a row that fails, and one that crashes every worker.
    service.put_file("in/unread.jsonl", rows())
    service.put_file("in/rows.jsonl", rows("!fail", "!raise"))
    service.put_file("in/rows.csv", csv())
    service.put_file("in/rows.parquet", parquet())
    broken = template(seed="{{text}}", **{mark("body-key"): f"{{{{{mark('column')}}}}}"})
    jobs = [
        caller.bulk_job("in/rows.jsonl"),
        caller.bulk_job("in/rows.csv", template=template()),
        caller.bulk_job("in/rows.csv", template=template(user="{{" + mark("template"))),
        caller.bulk_job("in/rows.parquet", template=broken),
        caller.bulk_job("in/rows.parquet", template=template(user="{{nothing}}")),
        caller.online_job("!abort"),
    ]
    ids = []
    for job in jobs:
        answer = caller.send("POST", "/v1/jobs", json=job)
        if answer is not None and answer.is_success:
            ids.append(answer.json()["id"])
    assert len(ids) >= 3
    with service.client() as client:
        wait_for("the jobs have ended", lambda: all(client.get_job(id).state.is_terminal for id in ids), 120)
    has_said(service, "webhook attempted")

    # Parts of the service are away, or refuse.
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
        caller.send("POST", "/v1/jobs", json=caller.bulk_job("in/rows.jsonl"))
        service.s3_front.heal()

    # Processes die in the middle, and are asked to go.
    for point in ("api.committed", "worker.claimed", "worker.row_heard"):
        service.arm(point)
        caller.send("POST", "/v1/jobs", json=caller.bulk_job("in/unread.jsonl"))
        caller.send("POST", CHAT, json=chat())
        wait_for(f"a process has died at {point}", lambda point=point: not service.is_armed(point))
        service.wait_until_ready()
    with service.held():
        caller.send("POST", "/v1/jobs", json=caller.online_job("!wait"))
        for role in list(service.kept):
            service.stop(role)

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
    assert {"api", "scheduler", "worker"} <= {span.process for span in traces.spans}
    assert [word for word in secrets if is_in(word, traces.bodies)] == []


def encoded(body: object) -> bytes:
    """As JSON, with escapes for what is no character: httpx writes it as it is."""
    return json.dumps(body).encode()
