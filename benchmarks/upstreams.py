"""Measures what the queue costs before an upstream, and whether it finds the upstream's best concurrency.

    python -m benchmarks.upstreams
    python -m benchmarks.upstreams --empty 0 --engine vllm --rows 3000 --concurrency 4,8,16,32,64

Empty completions of a simulated upstream show the cost of a row: the CPU time of the worker's process. Then
the same rows go to an engine in turns: by a plain client with the best of some fixed concurrencies, by that
client with the worker's own control of concurrency, and by the service, from the first claim to `_SUCCESS`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any, Final, Protocol

import aiohttp

from benchmarks.measure import cpu_times
from benchmarks.report import Cell, Figure, others, report, report_figures, spread
from benchmarks.service_overhead import random_lines, run_job, service_with
from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.upstreams import engines
from tests.faults.kit.service import Parts, Service
from tests.helpers.upstreams import Settings, UpstreamProcess
from tests.integration.servers import free_port
from workers.upstreams.control import ConcurrencyLimit

PARTS: Final = Parts(engine="upstream", durable=True, are_forked=False)
MODEL: Final = Path(DEMO_MODEL_ID)
WARM_UP: Final = 2000  # rows
TOKENS: Final = (16, 48)
PROMPT_CHARS: Final = 150  # the demo model reads 256 tokens
SIMULATED: Final = Settings(models=(MODEL.name,), slots=256, step_s=0.01, slot_s=0.0001)
EMPTY: Final = Settings(models=(MODEL.name,), slots=4096, own_tokens=0)


class Limit(Protocol):
    """The number of requests that a client may have at once."""

    in_flight: int

    @property
    def limit(self) -> int: ...

    def on_sent(self) -> None: ...

    def on_done(self, now_s: float, sent_s: float, tokens: int) -> None: ...


class Fixed:
    """A number that was chosen."""

    def __init__(self, limit: int) -> None:
        self.limit, self.in_flight = limit, 0

    def on_sent(self) -> None:
        self.in_flight += 1

    def on_done(self, now_s: float, sent_s: float, tokens: int) -> None:
        self.in_flight -= 1


def by_client(url: str, rows: Sequence[Any], limit: Limit) -> float:
    """Rows per second of a client that sends them itself."""
    return asyncio.run(_by_client(f"{url}/completions", [json.dumps(row["body"]) for row in rows], limit))


async def _by_client(url: str, bodies: Sequence[str], limit: Limit) -> float:
    waiting, began_s = deque(bodies), time.monotonic()

    async def send(body: str) -> None:
        sent_s = time.monotonic()
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            assert answer.status == 200, await answer.text()
            usage = (await answer.json())["usage"]
        limit.on_done(time.monotonic(), sent_s, usage["completion_tokens"])
        fill()

    def fill() -> None:
        while waiting and limit.in_flight < limit.limit:
            limit.on_sent()
            group.create_task(send(waiting.popleft()))

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        async with asyncio.TaskGroup() as group:
            fill()
    return len(bodies) / (time.monotonic() - began_s)


def by_service(service: Service, rows: Sequence[Any], name: str) -> float:
    """Rows per second of a job, from its first claim to its end."""
    uri = service.put_file(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    body = {"endpoint": "completions", "input": uri, "output": service.location(f"{name}/")}
    return len(rows) / run_job(service, body, len(rows)).after_claim_s


def empty(count: int) -> Iterator[Figure]:
    """The cost of rows whose answers are empty."""
    with UpstreamProcess(EMPTY) as upstream, service_with("", PARTS, UPSTREAMS=upstream.url) as service:
        rows = _rows(WARM_UP + count, are_empty=True)
        by_service(service, rows[:WARM_UP], "warm-up")
        pid = service.pid("worker-1")
        before, before_there = cpu_times(pid), cpu_times(upstream.pid)
        rows_per_s = by_service(service, rows[WARM_UP:], "rows")
        cpu_s = cpu_times(pid).own - before.own
        there_s = cpu_times(upstream.pid).own - before_there.own
    yield Figure("CPU of a row, worker", 1e6 * cpu_s / count, "us", 500)
    yield Figure("CPU of a row, simulated upstream", 1e6 * there_s / count, "us")
    yield Figure("rows per second, both on this machine", rows_per_s, "rows/s")


@contextmanager
def running(engine: str) -> Iterator[str]:
    """An engine's URL."""
    if engine == "simulated":
        with UpstreamProcess(SIMULATED) as upstream:
            yield upstream.url
        return
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
        kind = {"vllm": engines.vllm, "llama.cpp": engines.llama_cpp}[engine]
        server = kind(free_port(), Path(folder))
        try:
            server.start()
            yield server.url
        finally:
            server.kill()


def beside_client(engine: str, count: int, turns: int, fixed: Sequence[int]) -> Iterator[dict[str, Cell]]:
    rows, before = _rows(count), cpu_times()
    with running(engine) as url, service_with("", PARTS, UPSTREAMS=url) as service:
        by_service(service, rows[: count // 4], "warm-up")
        speeds = {number: by_client(url, rows[: count // 2], Fixed(number)) for number in fixed}
        best = max(speeds, key=lambda number: speeds[number])
        chosen, controlled, served, limits = [by_client(url, rows, Fixed(best))], [], [], []
        for turn in range(turns):
            limit = ConcurrencyLimit()
            controlled.append(by_client(url, rows, limit))
            served.append(by_service(service, rows, f"rows-{turn}"))
            chosen.append(by_client(url, rows, Fixed(best)))
            limits.append(limit.limit)
        disturbed = others(cpu_times().other_share_since(before))
    for number, speed in speeds.items():
        yield _row(f"{engine}, {number} at once, half of the rows", [speed], speeds[best])
    yield _row(f"{engine}, {best} at once", chosen, mean(chosen))
    yield _row(f"{engine}, control ({', '.join(map(str, limits))} at the end)", controlled, mean(chosen))
    yield _row(f"{engine}, service", served, mean(chosen)) | {"others' CPU": disturbed}


def _row(who: str, rows_per_s: Sequence[float], best: float) -> dict[str, Cell]:
    return {"who": who, "rows/s": spread(rows_per_s), "of the best": mean(rows_per_s) / best}


def _rows(count: int, *, are_empty: bool = False) -> list[dict[str, Any]]:
    rows = random_lines(MODEL, count, TOKENS)
    for row in rows:
        row["body"]["prompt"] = row["body"]["prompt"][:PROMPT_CHARS]
        row["body"]["ignore_eos"] = not are_empty
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--empty", type=int, default=20_000, help="rows with empty answers; 0: none")
    parser.add_argument("--engine", choices=["simulated", "vllm", "llama.cpp"], default="simulated")
    parser.add_argument("--rows", type=int, default=16_000, help="of the engine; 0: none")
    parser.add_argument("--concurrency", default="64,128,181,256,362,512", help="fixed ones to choose from")
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args(arguments)
    if chosen.empty:
        report_figures("upstreams-empty", [*empty(chosen.empty)])
    if chosen.rows:
        fixed = [int(number) for number in chosen.concurrency.split(",")]
        report("upstreams", [*beside_client(chosen.engine, chosen.rows, chosen.turns, fixed)])


if __name__ == "__main__":
    main()
