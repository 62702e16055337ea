"""One trace from a client's `traceparent` to the answer or the webhook: real processes, and a collector."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import pytest

from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import Service, forked, wait_for_rows, wait_until_ended
from tests.helpers.otlp import Collector, SeenSpan, collector, tree
from tests.helpers.receiver import Receiver, receiver, says
from tests.helpers.waiting import wait_for

CLIENT_SPAN = "00f067aa0ba902b7"
SHARD, TERM = "nightshift.shard", "nightshift.term"
CLOCK_NS = 1_000_000  # the wall clock is read once for each span
ROW = f"chat {DEMO_MODEL_ID}"
CHAT = {"model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": "48213"}], "temperature": 0}
WAIT_S = 240.0
DROPPED = "Queue full, dropping Span"  # as the SDK says it


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collector() as received:
        yield received


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver(says(200)) as hooks:
        yield hooks


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, traces: Collector, files: Path) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in traces.variables.items():
            patch.setenv(name, value)
        with forked(
            tmp_path_factory.mktemp("service"),
            FILE_ROOTS=str(files),
            WEBHOOK_ALLOW_CIDRS="127.0.0.0/8",
            WEBHOOK_PORTS="1-65535",
            SEGMENT_ROWS="8",
            SEGMENT_INTERVAL_S="0.2",
        ) as service:
            yield service


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def traceparent(trace_id: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-{flags}"}


def seen(traces: Collector, trace_id: str, is_whole: Callable[[list[SeenSpan]], bool]) -> list[SeenSpan]:
    """The trace's spans, once they are what is waited for."""

    def whole() -> list[SeenSpan]:
        spans = traces.of_trace(trace_id)
        return spans if is_whole(spans) else []

    return wait_for("the spans", whole, WAIT_S, said=lambda: "\n".join(tree(traces.of_trace(trace_id))))


def has(*names: str) -> Callable[[list[SeenSpan]], bool]:
    return lambda spans: set(names) <= {span.name for span in spans}


def the(spans: Sequence[SeenSpan], name: str) -> SeenSpan:
    [span] = [span for span in spans if span.name == name]
    return span


def test_an_online_request_is_one_trace_from_the_client_to_the_answer(
    service: Service, traces: Collector
) -> None:
    trace_id = "11" * 16
    with service.http() as http:
        answered = http.post("/chat/completions", json=CHAT, headers=traceparent(trace_id), timeout=60)
    assert answered.is_success, answered.text

    spans = seen(traces, trace_id, has("POST /v1/chat/completions", "claim", "answer", ROW))
    assert tree(spans, with_process) == [
        "api POST /v1/chat/completions",
        "  api accept",
        "  api ring",
        f"  worker {ROW}",
        "    worker answer",
        "    worker decode",
        "    worker prefill",
        "    worker queue",
        "  worker claim",
    ]
    served, claim, chat = (the(spans, name) for name in ("POST /v1/chat/completions", "claim", ROW))
    assert (served.kind, served.parent_id) == ("SERVER", CLIENT_SPAN)
    assert claim.links in ((the(spans, "ring").span_id,), ())  # (): the database was asked before it came
    usage = answered.json()["usage"]
    assert chat.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert chat.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    phases = [the(spans, name) for name in ("queue", "prefill", "decode", "answer")]
    assert all(one.end_ns <= next.start_ns + CLOCK_NS for one, next in pairwise(phases))
    assert not any(span.is_error for span in spans)


def test_a_bulk_job_is_one_trace_to_its_webhook_and_a_killed_workers_shard_goes_on_in_it(
    service: Service, traces: Collector, hooks: Receiver, files: Path
) -> None:
    trace_id, rows = "22" * 16, 1500
    (files / "numbers.jsonl").write_text("".join(f'{{"n": "{n}"}}\n' for n in range(100_000, 100_000 + rows)))
    with service.http() as http:
        made = http.post("/jobs", json=bulk_job(files, hooks), headers=traceparent(trace_id))
        assert made.status_code == 202, made.text
        job = made.json()["id"]
        seen(traces, trace_id, has("claim"))
        wait_for_rows(service, job)
        os.kill(service.worker_pid(), signal.SIGKILL)
        wait_until_ended(service, job)
        assert http.get(f"/jobs/{job}").json()["status"] == "succeeded", service.logs()

    spans = seen(traces, trace_id, has("webhook", "assemble", "shard"))
    spans = seen(traces, trace_id, lambda spans: len(named(spans, "shard")) >= shards_of(spans))
    lines = tree(spans, with_process, below=CLIENT_SPAN)
    assert {line for line in lines if not line.startswith("   ")} == {
        "api POST /v1/jobs",
        "  api accept",
        "  scheduler assemble",
        "  scheduler plan",
        "  scheduler webhook",
        "  worker claim",
        "  worker shard",
        f"  {the(spans, 'part').process} part",
    }
    first = min(span.attributes[SHARD] for span in spans if span.attributes.get(TERM) == 2)
    claims = [span for span in named(spans, "claim") if span.attributes[SHARD] == first]
    [resumed] = [span for span in named(spans, "shard") if span.attributes[SHARD] == first]
    assert sorted(span.attributes[TERM] for span in claims) == [1, 2]
    assert (resumed.attributes[TERM], resumed.attributes["nightshift.outcome"]) == (2, "done")
    assert resumed.links == (the(spans, "POST /v1/jobs").span_id,)
    for span in (resumed, *(span for span in claims if span.attributes[TERM] == 2)):
        taken_over = [span.attributes[f"nightshift.takeover.{name}"] for name in ("term", "cause")]
        assert taken_over == [1, "killed"], "whose shard span never came"
    below = [span for span in spans if span.parent_id == resumed.span_id]
    assert [span.name for span in below if span.name != ROW] == ["read"]
    assert 0 < len(named(below, ROW)) <= 16
    known = {span.span_id for span in spans} | {CLIENT_SPAN}
    orphans = [span for span in spans if span.parent_id not in known]
    assert {span.name for span in orphans} <= {ROW, "read"}, (
        "of the killed lease only what had ended is there"
    )
    assert len({span.parent_id for span in orphans}) <= 1
    assert "traceparent" not in hooks.requests[-1].headers
    assert the(spans, "webhook").attributes["nightshift.event"] == hooks.requests[-1].headers["webhook-id"]


def test_a_failed_row_is_recorded_as_an_error_and_nothing_of_a_client_that_does_not_want_it(
    service: Service, traces: Collector, files: Path, hooks: Receiver
) -> None:
    one_row_fails(service, files, hooks, traceparent("66" * 16, "00"))
    job = one_row_fails(service, files, hooks, traceparent("33" * 16))

    spans = seen(traces, "33" * 16, has("assemble", "shard"))
    [failed] = [span for span in named(spans, ROW) if span.is_error]
    assert (failed.attributes["nightshift.row"], failed.attributes["nightshift.row.status"]) == (20, 400)
    assert the(spans, "shard").attributes["nightshift.job"] == job
    assert len(named(spans, ROW)) == 17, "16 of those that succeeded"
    assert traces.of_trace("66" * 16) == []


def one_row_fails(service: Service, files: Path, hooks: Receiver, headers: dict[str, str]) -> str:
    """Runs a job of 21 rows, of which the last fails. Returns its id."""
    (files / "numbers.jsonl").write_text("".join(f'{{"n": "{n}"}}\n' for n in range(20)) + '{"m": "1"}\n')
    with service.http() as http:
        made = http.post("/jobs", json=bulk_job(files, hooks), headers=headers)
        job: str = made.json()["id"]
        wait_until_ended(service, job)
        assert http.get(f"/jobs/{job}").json()["counts"]["failed"] == 1
    return job


CANARY = "cafefade" * 12  # hexadecimal: some of it could pass for an id
VALID = f"00-{'44' * 16}-{CLIENT_SPAN}-01"
EIGHT_KB = 8 * 1024


@pytest.mark.parametrize(
    ("sent", "is_followed"),
    [
        ([("traceparent", "nonsense")], False),
        ([("traceparent", "")], False),
        ([("traceparent", f"00-{'0' * 32}-{CLIENT_SPAN}-01")], False),
        ([("traceparent", f"00-{'44' * 16}-{'0' * 16}-01")], False),
        ([("traceparent", f"ff-{'44' * 16}-{CLIENT_SPAN}-01")], False),
        ([("traceparent", f"00-{CANARY}-{CLIENT_SPAN}-01")], False),
        ([("traceparent", f"{VALID}-{CANARY * (EIGHT_KB // len(CANARY))}")], False),
        ([("traceparent", VALID), ("traceparent", f"00-{'55' * 16}-{CLIENT_SPAN}-01")], False),
        ([("traceparent", VALID), ("traceparent", VALID)], False),
        ([("traceparent", "\xff\xfe" + CANARY)], False),
        ([("tracestate", f"a={CANARY}{'b' * EIGHT_KB}")], False),
        ([("traceparent", VALID), ("tracestate", f"a={CANARY}{'b' * EIGHT_KB}")], True),
        ([("traceparent", VALID), ("tracestate", f"a={CANARY}"), ("tracestate", f"a={CANARY}")], True),
        ([("traceparent", VALID), ("tracestate", f"\xff=,=,{CANARY}"), ("baggage", f"k={CANARY}")], True),
    ],
)
def test_trace_headers_that_are_wrong_are_ignored_and_kept_nowhere(
    service: Service, traces: Collector, sent: list[tuple[str, str]], is_followed: bool
) -> None:
    before = {span.span_id for span in traces.spans}
    with service.http() as http:
        headers = [(name, value.encode("latin-1")) for name, value in sent]
        answered = http.post("/jobs", json={"endpoint": "chat", "body": CHAT}, headers=headers, timeout=60)
        assert answered.is_success, answered.text
        wait_until_ended(service, answered.json()["id"])

    [root] = wait_for("the request's span", lambda: roots_since(traces, before), WAIT_S)
    assert (root.trace_id == "44" * 16) is is_followed
    assert root.trace_id != "55" * 16
    seen(traces, root.trace_id, lambda spans: ROW in {span.name for span in spans_since(spans, before)})
    files = [path for path in service.data_dir.rglob("*") if path.suffix == ".log" or ".db" in path.name]
    assert {".log", ".db"} <= {path.suffix for path in files}
    kept = [*traces.bodies, *(path.read_bytes() for path in files)]
    assert not [text for text in kept if CANARY.encode() in text or bytes.fromhex(CANARY) in text]


def test_a_collector_that_never_answers_holds_nothing_up_and_what_is_dropped_is_said(
    tmp_path: Path, hooks: Receiver, files: Path
) -> None:
    begins, ends = threading.Event(), threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        begins.set()
        ends.wait(WAIT_S)
        handler.close_connection = True

    few = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
    (files / "numbers.jsonl").write_text('{"n": "1"}\n' * 40)
    with receiver(hang) as hung, pytest.MonkeyPatch.context() as patch:
        for name, value in (Collector(hung).variables | few).items():
            patch.setenv(name, value)
        try:
            with forked(tmp_path, FILE_ROOTS=str(files), WEBHOOK_ALLOW_CIDRS="127.0.0.0/8") as service:
                with service.http() as http:
                    made = http.post("/jobs", json=bulk_job(files, hooks) | {"webhook": None})
                    job = made.json()["id"]
                    assert begins.wait(WAIT_S)
                    for _ in range(3):
                        assert http.post("/chat/completions", json=CHAT, timeout=60).is_success
                    wait_until_ended(service, job)
                    assert http.get(f"/jobs/{job}").json()["status"] == "succeeded", service.logs()
                wait_for("it is said", lambda: DROPPED in service.logs(), WAIT_S, said=service.logs)
                assert not ends.is_set(), "the collector has answered nothing yet"
        finally:
            ends.set()


def roots_since(traces: Collector, before: set[str]) -> list[SeenSpan]:
    return [span for span in spans_since(traces.spans, before) if span.kind == "SERVER"]


def spans_since(spans: Sequence[SeenSpan], before: set[str]) -> list[SeenSpan]:
    """Spans whose ids are not among `before`."""
    return [span for span in spans if span.span_id not in before]


def bulk_job(files: Path, hooks: Receiver) -> dict[str, object]:
    return {
        "endpoint": "/v1/chat/completions",
        "input": f"file://{files}/numbers.jsonl",
        "output": f"file://{files}/out-{time.monotonic_ns()}/",
        "template": {
            "model": DEMO_MODEL_ID,
            "messages": [{"role": "user", "content": "{{n}}"}],
            "temperature": 0,
        },
        "webhook": {"url": hooks.numeric_url},
    }


def with_process(span: SeenSpan) -> str:
    return f"{span.process} {span.name}"


def named(spans: Sequence[SeenSpan], name: str) -> list[SeenSpan]:
    return [span for span in spans if span.name == name]


def shards_of(spans: Sequence[SeenSpan]) -> int:
    """How many were claimed: each ends."""
    return len({span.attributes[SHARD] for span in named(spans, "claim")})
