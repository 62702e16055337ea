"""Clients as they come: unchecked inputs, readers that lose the connection, runs that are started three
times, connections that never ask, receivers that never answer. The service goes on for all others.
"""

import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import ColumnElement, func, select

from api.middleware.connections import connections_max
from nightshift.jobs import Face, JobState
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import (
    BulkJob,
    OnlineJob,
    Row,
    some_rows,
    submit_bulk,
    submit_online,
)
from tests.faults.kit.service import Service
from tests.helpers.receiver import Answer, Receiver, receiver, says, says_nothing_until
from tests.helpers.waiting import WAIT_MAX_S, wait_for
from tests.integration.servers import HOST

MODEL = "fake"
OK = httpx.codes.OK
API_FILES_MAX = 300  # that the API may have open: half of them for connections
NIGHTLY_RUNS = 3  # that cron starts at once


@pytest.fixture(scope="module")
def service(module_service_of) -> Service:
    return module_service_of(SHARD_BYTES="1000000")


# -- unchecked inputs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of an input, and what is to come of it: the line's name in the output, a status or the code of
    its error. A line without an outcome is no row.
    """

    data: bytes
    name: str | None = None  # None: it is called by its number
    outcome: int | str | None = None


def good(custom_id: str, *, before: bytes = b"", after: bytes = b"") -> Line:
    row = Row(custom_id, f"say {custom_id}").line(MODEL)
    return Line(before + json.dumps(row, ensure_ascii=False).encode() + after, custom_id, OK)


def wrong(custom_id: str, code: str, **fields: Any) -> Line:
    """A line that is a row but for one field."""
    return Line(json.dumps(Row(custom_id, "wrong").line(MODEL) | fields).encode(), custom_id, code)


def body(**fields: Any) -> dict[str, Any]:
    return Row("", "wrong").body(MODEL) | fields


LINES = (
    good("after a byte order mark", before=b"\xef\xbb\xbf"),
    good("with the end of line of Windows", after=b"\r"),
    Line(b""),
    Line(b"  \t \r"),
    Line(b"no JSON at all", None, "invalid_json_line"),
    Line(b"[1, 2]", None, "invalid_json_line"),
    Line(b'{"custom_id": "cut off', None, "invalid_json_line"),
    Line(b'{"custom_id": "deep", "body": ' + b"[" * 5000 + b"]" * 5000 + b"}", None, "invalid_json_line"),
    Line(b'{"custom_id": "\xff\xfe"}', None, "invalid_encoding"),
    Line(b'{"custom_id": "half of a pair: \\ud83d"}', None, "invalid_encoding"),
    Line(b'{"custom_id": "10 MB: ' + b"x" * 10_000_000 + b'"}', None, "line_too_long"),
    good("twice"),
    good("twice"),
    good("smiles \U0001f600, \u4f60\u597d"),
    wrong("no body", "missing_required_parameter", body=None),
    wrong("no messages", "missing_required_parameter", body={"model": MODEL}),
    wrong("another method", "invalid_method", method="GET"),
    wrong("another route", "invalid_url", url="/v1/embeddings"),
    wrong("another model", "mismatched_model", body=body(model="other")),
    wrong("a wish for a stream", "streaming_unsupported", body=body(stream=True)),
    Line(json.dumps(Row("x" * 513, "long").line(MODEL)).encode(), None, "missing_required_parameter"),
    good("the last, without an end of line"),
)


def test_whatever_is_wrong_with_a_line_is_in_its_own_line_and_the_others_are_run(service: Service) -> None:
    places = {
        "input": service.put_file("in/odd.jsonl", b"\n".join(line.data for line in LINES)),
        "output": service.location("out/odd/"),
    }
    with service.http() as http:
        job_id = http.post("/v1/jobs", json={"endpoint": "chat"} | places).raise_for_status().json()["id"]
    wait_for("the job has ended", lambda: service.job(job_id).state.is_terminal)

    rows = sorted(  # those that failed lie in a file of their own
        (line for line in LINES if line.outcome is not None), key=lambda line: line.outcome != OK
    )
    job = BulkJob(job_id, Face.NATIVE, (), "out/odd/", "odd")
    stored = service.job(job_id)
    told = [json.loads(line) for line in oracle.output_lines(service, job, stored)]
    assert [_outcome(line) for line in told] == [line.outcome for line in rows]
    assert [line["custom_id"] for line, row in zip(told, rows, strict=True) if row.name is not None] == [
        row.name for row in rows if row.name is not None
    ]
    succeeded = sum(row.outcome == OK for row in rows)
    assert (stored.state, stored.counts.succeeded, stored.counts.total) == (
        JobState.SUCCEEDED,
        succeeded,
        len(rows),
    )


def _outcome(line: dict[str, Any]) -> object:
    response = line["response"]
    error = response["body"].get("error")
    return error["code"] if error else response["status_code"]


# -- readers that lose the connection ------------------------------------------------------------------


def test_a_reader_whose_api_dies_again_and_again_misses_no_token_and_gets_none_twice(
    service: Service,
) -> None:
    row = Row("one", "tell me much ms=20", max_tokens=200)
    job = submit_online(service, row)
    deltas: list[dict[str, Any]] = []
    dies_after = [10, 60]  # deltas
    with service.client() as client:
        for event in client.events(job.id):
            if event.type == "job.delta":
                deltas.append(event.data)
            if dies_after and len(deltas) == dies_after[0]:
                dies_after.pop(0)
                service.kill_and_wait("api")

    oracle.judge(service, [job])
    assert not dies_after
    assert event.type == "job.succeeded"
    (line,) = _results(service, job)
    content = line["response"]["body"]["choices"][0]["message"]["content"]
    assert "".join(delta["text"] for delta in deltas) == content
    assert [delta["offset"] for delta in deltas] == sorted({delta["offset"] for delta in deltas})


def test_a_reader_of_a_bulk_job_sees_each_event_once_although_the_api_dies(service: Service) -> None:
    job = submit_bulk(service, some_rows(40, step_ms=20))
    seen = []
    with service.client() as client:
        for event in client.events(job.id):
            if event.type == "job.progress" and event.type not in {earlier.type for earlier in seen}:
                service.kill_and_wait("api")
            seen.append(event)

    oracle.judge(service, [job])
    numbers = [int(event.id.partition("-")[0]) for event in seen]
    assert numbers == sorted(set(numbers))
    assert seen[-1].type == "job.succeeded"
    assert seen[-1].data["counts"] == {"total": 40, "succeeded": 40, "failed": 0}


def _results(service: Service, job: OnlineJob) -> list[dict[str, Any]]:
    with service.client() as client:
        return list(client.results(job.id))


# -- cron ----------------------------------------------------------------------------------------------


def test_a_nightly_run_that_is_started_again_and_again_is_one_job(service: Service) -> None:
    """Three at once, of which one is killed, and one more when all is over."""
    rows = some_rows(20, seed=44, step_ms=20)
    data = "".join(json.dumps(row.line(MODEL)) + "\n" for row in rows).encode()
    service.put_file("in/nightly.jsonl", data)
    service.wait_until_ready()

    runs = [nightly(service, "nightly") for _ in range(NIGHTLY_RUNS)]
    wait_for("the run is known", lambda: jobs_called(service, "nightly"))
    killed = runs.pop()
    killed.kill()
    killed.communicate()
    outputs = [run.communicate()[0] for run in runs]
    runs.append(nightly(service, "nightly"))
    outputs.append(runs[-1].communicate()[0])

    assert [run.returncode for run in runs] == [0] * NIGHTLY_RUNS
    [job_id] = jobs_called(service, "nightly")
    assert {json.loads(output.splitlines()[-1])["id"] for output in outputs} == {job_id}
    job = BulkJob(job_id, Face.NATIVE, tuple(rows), "out/nightly/", "nightly")
    oracle.judge(service, [job])


def nightly(service: Service, name: str) -> "subprocess.Popen[str]":
    """The command that cron would start."""
    places = [service.location(f"in/{name}.jsonl"), "--output", service.location(f"out/{name}/")]
    how = ["--endpoint", "chat", "--name", name, "--date", "2026-11-21", "--wait", "--json"]
    how += ["--webhook", service.receiver.numeric_url]
    return subprocess.Popen(
        [sys.executable, "-m", "nightshift.cli.main", "run", *places, *how],
        env=service.environment | {"NIGHTSHIFT_API_KEY": service.api_key},
        stdout=subprocess.PIPE,
        text=True,
    )


def jobs_called(service: Service, name: str) -> list[str]:
    with service.store.snapshot() as tx:
        return [job.id for job in tx.jobs.list(service.tenant_id, limit=1000) if job.spec.name == name]


# -- connections that never ask ------------------------------------------------------------------------

HEAD = b"POST /v1/jobs HTTP/1.1\r\nhost: here\r\n"
BODY_TO_COME = b"authorization: Bearer KEY\r\ncontent-length: 1000\r\n\r\n{"


@pytest.mark.parametrize(
    ("sends", "clients"),
    [
        pytest.param(
            [b"", b"P", HEAD], API_FILES_MAX + 30, marks=pytest.mark.exhaustive
        ),  # more than the API may have files
        ([HEAD + BODY_TO_COME], connections_max(API_FILES_MAX) - 10),  # it must answer these some day
    ],
    ids=["no whole head", "no whole body"],
)
def test_clients_that_never_ask_do_not_keep_others_from_being_answered(
    service: Service, sends: list[bytes], clients: int
) -> None:
    service.wait_until_ready()
    pid = service.pid("api")
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (API_FILES_MAX, hard))
    with ExitStack() as stack:
        for number in range(clients):
            slow = stack.enter_context(socket.create_connection((HOST, _port(service)), WAIT_MAX_S))
            slow.sendall(sends[number % len(sends)].replace(b"KEY", service.api_key.encode()))
        jobs = [submit_online(service, Row("one", f"{number} asks properly")) for number in range(3)]
        oracle.judge(service, jobs)

    assert service.pid("api") == pid


def _port(service: Service) -> int:
    return int(service.base_url.rpartition(":")[2])


# -- receivers that never answer -----------------------------------------------------------------------


def test_no_job_and_no_other_tenant_waits_for_a_webhook_that_is_not_taken(service: Service) -> None:
    heard = threading.Event()
    other = service.as_tenant("other")
    with receivers(says_nothing_until(heard), says(500), says(503, retry_after="1")) as unwilling:
        owed = [
            (endpoint, submit_online(service, Row("one", "hello"), webhook={"url": endpoint.numeric_url}))
            for endpoint in unwilling
            for _ in range(10)
        ]
        oracle.wait_for_ends(service, [job for _, job in owed])
        theirs = submit_online(other, Row("one", "another tenant's"))
        wait_for("the other tenant's webhook", lambda: _told(service.receiver, theirs))
        assert not heard.is_set()

        for endpoint in unwilling:
            endpoint.answer = says(200)
        heard.set()
        wait_for("each was tried", lambda: _pending(service, tables.delivery.c.attempts == 0) == 0)
        service.let_webhooks_be_due()
        wait_for("each is taken", lambda: _pending(service) == 0)
        assert [len(set(_told(endpoint, job))) for endpoint, job in owed] == [1] * len(owed)


def _pending(service: Service, *conditions: ColumnElement[bool]) -> int:
    """How many webhooks are owed."""
    pending = (tables.delivery.c.state == DeliveryState.PENDING, *conditions)
    with service.database.read() as connection:
        return int(connection.execute(select(func.count()).where(*pending)).scalar_one())


@contextmanager
def receivers(*answers: Answer) -> Iterator[list[Receiver]]:
    with ExitStack() as stack:
        yield [stack.enter_context(receiver(answer)) for answer in answers]


def _told(endpoint: Receiver, job: OnlineJob) -> list[str]:
    """The ids under which it was told of a job."""
    return [
        request.headers["webhook-id"]
        for request in list(endpoint.requests)
        if json.loads(request.body)["data"]["id"] == job.id
    ]
