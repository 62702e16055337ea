"""What traces cost: the same bulk jobs and chats by turns in two services, one of which sends spans.

    python -m benchmarks.tracing

Both are real processes with the demo model, and both are up all the time; the collector takes every span and
keeps none. Everything is sampled, as by default. A pair is one turn of each; the order changes every time.

On a machine that does other work, tokens/s say little; the processor time of the service's own processes for
a token says more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from statistics import median
from unittest.mock import patch

import httpx
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.measure import cpu_times
from benchmarks.report import Cell, others, report, spread
from benchmarks.service.running import PARTS, run_job, service_with
from nightshift.demo import DEMO_MODEL_ID, LARGEST_NUMBER, demo_model_path
from nightshift.tracing.attributes import JOB, TERM
from nightshift.tracing.sdk import OneResource
from nightshift.tracing.spans import child, end, record_with, serve
from tests.faults.kit.processes import children
from tests.faults.kit.service import Service
from tests.receiver import receiver, says

SEED = 7
WARM_UP = 64


def chat(number: int) -> dict[str, object]:
    messages = [{"role": "user", "content": str(number)}]
    return {"model": DEMO_MODEL_ID, "messages": messages, "max_tokens": 64, "temperature": 0}


@dataclass(frozen=True)
class Turn:
    tokens: int
    seconds: float
    cpu_s: float
    """Of the service's processes."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_us(self) -> float:
        """For a token."""
        return 1e6 * self.cpu_s / self.tokens


def cpu_s(service: Service) -> float:
    """Of its processes, so far."""
    pids = [pid for kept in service.kept.values() if (pid := kept.pid) is not None]
    pids += [child for pid in pids for child in children(pid)]
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def bulk_turn(service: Service, numbers: Sequence[int], turn: str) -> Turn:
    """Tokens generated, from the first claim to `_SUCCESS`."""
    source = Path(service.location("").removeprefix("file://")) / turn / "input.jsonl"
    source.parent.mkdir(parents=True)
    lines = [
        {"custom_id": f"row-{at}", "method": "POST", "url": "/v1/chat/completions", "body": chat(number)}
        for at, number in enumerate(numbers)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    body = {"endpoint": "chat", "input": source.as_uri(), "output": service.location(f"{turn}/out/")}
    before_s = cpu_s(service)
    ended = run_job(service, body, len(numbers))
    return Turn(ended.job.usage.completion_tokens, ended.after_claim_s, cpu_s(service) - before_s)


def chat_turn(service: Service, numbers: Sequence[int], clients: int) -> Turn:
    """Tokens generated, while so many clients each wait for one answer after the other."""
    with service.http() as http, ThreadPoolExecutor(clients) as pool:
        began_s, before_s = time.monotonic(), cpu_s(service)
        tokens = list(pool.map(lambda number: _answered(http, number), numbers))
        return Turn(sum(tokens), time.monotonic() - began_s, cpu_s(service) - before_s)


def _answered(http: httpx.Client, number: int) -> int:
    answer = http.post("/v1/chat/completions", json=chat(number), timeout=60)
    answer.raise_for_status()
    return int(answer.json()["usage"]["completion_tokens"])


class Encoding(SpanExporter):
    """Makes what would be sent."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def span_cpu_us(count: int = 2000) -> float:
    """Processor time for a span with two attributes: made, queued and encoded, not sent. `count`: at most
    what the queue of the SDK holds.
    """
    exporter = Encoding()
    provider = TracerProvider(resource=OneResource(Resource.create()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=count))
    record_with(provider.get_tracer("nightshift"))
    served = serve("POST", None)
    began_s = time.process_time()
    for term in range(count):
        end(child("claim", of=served), {JOB: "job_7br9kw9pawd060yansthvip3", TERM: term})
    provider.shutdown()
    record_with(None)
    return 1e6 * (time.process_time() - began_s) / max(1, exporter.spans)


@contextmanager
def services(threads: int) -> Iterator[tuple[dict[str, Service], list[int]]]:
    """One without and one with traces; and the sizes of what the collector got."""
    sizes: list[int] = []

    def forget(handler: BaseHTTPRequestHandler) -> None:
        sizes.append(len(found.requests.pop().body))
        says(200)(handler)

    with receiver(forget) as found, ExitStack() as stack:
        parts = replace(PARTS, threads=threads)
        off = stack.enter_context(service_with(demo_model_path(), parts))
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{found.port}"}
        with patch.dict(os.environ, variables):
            on = stack.enter_context(service_with(demo_model_path(), parts))
        yield {"off": off, "on": on}, sizes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000, help="of a bulk job")
    parser.add_argument("--chats", type=int, default=300, help="of a turn")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of torch")
    chosen = parser.parse_args(arguments)
    before = cpu_times()
    found: dict[str, dict[str, list[Turn]]] = {kind: {"off": [], "on": []} for kind in ("bulk", "chats")}
    with services(chosen.threads) as (by_name, sizes):
        draw = random.Random(SEED)
        for service in by_name.values():
            chat_turn(service, range(WARM_UP), chosen.clients)
            bulk_turn(service, range(WARM_UP), "warm-up")
        for pair in range(chosen.pairs):
            numbers = draw.sample(range(LARGEST_NUMBER + 1), max(chosen.rows, chosen.chats))
            for name in ("off", "on") if pair % 2 == 0 else ("on", "off"):
                service = by_name[name]
                bulk = bulk_turn(service, numbers[: chosen.rows], f"pair-{pair}")
                found["bulk"][name].append(bulk)
                chats = chat_turn(service, numbers[: chosen.chats], chosen.clients)
                found["chats"][name].append(chats)
    rows = [_row(kind, figures) for kind, figures in found.items()]
    notes = [
        f"A span takes {span_cpu_us():.1f} us of processor time: made, queued and encoded.",
        f"{chosen.pairs} pairs: {chosen.rows} rows a job, {chosen.chats} chats, {chosen.clients} clients.",
        f"The collector got {sum(sizes) / 1e6:.2f} MB in {len(sizes)} requests.",
        f"Others' CPU: {others(cpu_times().other_share_since(before))}",
    ]
    report("tracing", rows, notes)


def _row(kind: str, turns: dict[str, list[Turn]]) -> dict[str, Cell]:
    pairs = list(zip(turns["off"], turns["on"], strict=True))
    slower = [100 * (1 - on.tokens_per_s / off.tokens_per_s) for off, on in pairs]
    dearer = [100 * (on.cpu_us / off.cpu_us - 1) for off, on in pairs]
    return {
        "work": kind,
        "off, tok/s": spread([turn.tokens_per_s for turn in turns["off"]]),
        "on, tok/s": spread([turn.tokens_per_s for turn in turns["on"]]),
        "slower, median pair": f"{median(slower):+.1f} %",
        "off, CPU us/token": median(turn.cpu_us for turn in turns["off"]),
        "on, CPU us/token": median(turn.cpu_us for turn in turns["on"]),
        "more CPU, median pair": f"{median(dearer):+.1f} %",
        "of all pairs": f"{min(dearer):+.1f} … {max(dearer):+.1f} %",
    }


if __name__ == "__main__":
    main()
