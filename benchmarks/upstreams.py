"""Measures what the queue costs before an upstream, and whether it finds the upstream's best concurrency.

    python -m benchmarks.upstreams
    python -m benchmarks.upstreams --empty 0 --engine vllm --rows 3000 --concurrency 4,8,16,32,64
    python -m benchmarks.upstreams --empty 0 --rows 0 --bench 2000

Empty completions of a simulated upstream show the cost of a row: the CPU time of the worker's process. Then
the same rows go to an engine in turns: by a plain client with the best of some fixed concurrencies, by that
client with the worker's own control of concurrency, and by the service, from the first claim to `_SUCCESS`.
Last, vLLM gets the same rows in turns by `vllm bench serve` with its best `--max-concurrency`, which streams
every answer, and by the service. A ratio is that of a run to the mean of the peer's runs before and after it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, Final, Protocol

import aiohttp

from benchmarks.measure import cpu_times
from benchmarks.report import Cell, Figure, others, report, report_figures, spread
from benchmarks.runners.vllm_bench import bench_serve
from benchmarks.service_overhead import Ended, random_lines, run_job, service_with
from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path
from tests.e2e.upstreams import engines
from tests.e2e.upstreams.engines import Engine
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
OURS: Final = ("worker-1", "scheduler-1", "api")  # the service's processes
BENCH_CONCURRENCY: Final = (16, 32, 64)  # the engine has 16 slots
QUICK: Final = 4  # times fewer rows


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


def by_service(service: Service, rows: Sequence[Any], name: str) -> Ended:
    """A job of the service."""
    uri = service.put_file(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    body = {"endpoint": "completions", "input": uri, "output": service.location(f"{name}/")}
    return run_job(service, body, len(rows))


def empty(count: int) -> Iterator[Figure]:
    """The cost of rows whose answers are empty."""
    with UpstreamProcess(EMPTY) as upstream, service_with("", PARTS, UPSTREAMS=upstream.url) as service:
        rows = _rows(WARM_UP + count, are_empty=True)
        by_service(service, rows[:WARM_UP], "warm-up")
        pid = service.pid("worker-1")
        before, before_there = cpu_times(pid), cpu_times(upstream.pid)
        rows_per_s = count / by_service(service, rows[WARM_UP:], "rows").after_claim_s
        cpu_s = cpu_times(pid).own - before.own
        there_s = cpu_times(upstream.pid).own - before_there.own
    yield Figure("CPU of a row, worker", 1e6 * cpu_s / count, "us", 500)
    yield Figure("CPU of a row, simulated upstream", 1e6 * there_s / count, "us")
    yield Figure("rows per second, both on this machine", rows_per_s, "rows/s")


@contextmanager
def real(engine: str) -> Iterator[Engine]:
    """A real engine. vLLM caches no prefixes: the second to send a prompt would have it for less."""
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
        kind = {"vllm": engines.vllm, "llama.cpp": engines.llama_cpp}[engine]
        server = kind(free_port(), Path(folder))
        if engine == "vllm":
            server.command = [*server.command, "--no-enable-prefix-caching"]
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def url_of(engine: str) -> Iterator[str]:
    if engine == "simulated":
        with UpstreamProcess(SIMULATED) as upstream:
            yield upstream.url
    else:
        with real(engine) as server:
            yield server.url


def beside_client(engine: str, count: int, turns: int, fixed: Sequence[int]) -> Iterator[dict[str, Cell]]:
    rows, before = _rows(count), cpu_times()
    with url_of(engine) as url, service_with("", PARTS, UPSTREAMS=url) as service:
        by_service(service, rows[: count // 4], "warm-up")
        speeds = {number: by_client(url, rows[: count // 2], Fixed(number)) for number in fixed}
        best = max(speeds, key=lambda number: speeds[number])
        chosen, controlled, served, limits = [by_client(url, rows, Fixed(best))], [], list[Ended](), []
        for turn in range(turns):
            limit = ConcurrencyLimit()
            controlled.append(by_client(url, rows, limit))
            served.append(by_service(service, rows, f"rows-{turn}"))
            chosen.append(by_client(url, rows, Fixed(best)))
            limits.append(limit.limit)
        disturbed = others(cpu_times().other_share_since(before))
    for number, speed in speeds.items():
        yield _row(f"{engine}, {number} at once, half of the rows", [speed], [speed / speeds[best]])
    yield _row(f"{engine}, {best} at once", chosen, [speed / mean(chosen) for speed in chosen])
    said = f"{engine}, control ({', '.join(map(str, limits))} at the end)"
    yield _row(said, controlled, ratios(controlled, chosen))
    speeds_ours = [count / ended.after_claim_s for ended in served]
    yield _row(f"{engine}, service", speeds_ours, ratios(speeds_ours, chosen)) | _about(served, disturbed)


@dataclass(frozen=True)
class Run:
    """`engine_ms`, `sender_ms`: CPU time of a row."""

    rows_per_s: float
    engine_ms: float
    sender_ms: float


def measured(send: Callable[[], float], count: int, engine: int, senders: Sequence[int]) -> Run:
    """`send` returns rows per second; the others are process ids."""

    def cpu_s() -> tuple[float, float]:
        return cpu_times(engine).own, sum(cpu_times(pid).own for pid in senders)

    before = cpu_s()
    rows_per_s = send()
    taken_ms = [1000 * (after - earlier) / count for earlier, after in zip(before, cpu_s(), strict=True)]
    return Run(rows_per_s, *taken_ms)


def beside_bench(count: int, turns: int, numbers: Sequence[int]) -> Iterator[dict[str, Cell]]:
    """The service beside `vllm bench serve`, which has the best of these for its `--max-concurrency`."""
    rows, few, before = _rows(count), count // 4, cpu_times()
    with (
        tempfile.TemporaryDirectory(prefix="ns-bench-") as folder,
        real("vllm") as server,
        service_with("", PARTS, UPSTREAMS=server.url) as service,
        bench_serve(Path(server.command[0]), server.url, DEMO_MODEL_ID, demo_model_path()) as bench,
    ):
        dataset = Path(folder, "rows.jsonl")
        dataset.write_text("".join(json.dumps(dataset_row(row)) + "\n" for row in rows))
        assert server.process is not None, "it was started"
        engine, ours = server.process.pid, [service.pid(role) for role in OURS]
        by_service(service, rows[:few], "warm-up")
        speeds = {number: bench.rows_per_s(dataset, few, number) for number in numbers}
        best = max(speeds, key=lambda number: speeds[number])

        def by_bench() -> Run:
            return measured(lambda: bench.rows_per_s(dataset, count, best), count, engine, [bench.pid])

        def by_ours() -> float:
            jobs.append(by_service(service, rows, f"rows-{len(jobs)}"))
            return count / jobs[-1].after_claim_s

        alone, served, jobs = [by_bench()], list[Run](), list[Ended]()
        for _ in range(turns):
            served.append(measured(by_ours, count, engine, ours))
            alone.append(by_bench())
        disturbed = others(cpu_times().other_share_since(before))
    for number, speed in speeds.items():
        yield _row(
            f"vllm bench serve, {number} at once, a quarter of the rows", [speed], [speed / speeds[best]]
        )
    yield from compared(f"vllm bench serve, {best} at once", alone, served, _about(jobs, disturbed))


def compared(
    who: str, alone: Sequence[Run], served: Sequence[Run], about: dict[str, Cell]
) -> Iterator[dict[str, Cell]]:
    """Two rows of the table, with the CPU time of a row of both parts."""
    speeds, ours = ([run.rows_per_s for run in runs] for runs in (alone, served))
    first = _row(who, speeds, [speed / mean(speeds) for speed in speeds])
    second = _row("service", ours, ratios(ours, speeds))
    for row, runs in ((first, alone), (second | about, served)):
        yield row | {
            "CPU of a row, engine, ms": mean(run.engine_ms for run in runs),
            "its sender, ms": mean(run.sender_ms for run in runs),
        }


def ratios(speeds: Sequence[float], around: Sequence[float]) -> list[float]:
    """Each speed as a part of the mean of the two that were measured before and after it."""
    return [speed / mean(pair) for speed, pair in zip(speeds, pairwise(around), strict=True)]


def dataset_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as `vllm bench serve` reads it."""
    return {"prompt": row["body"]["prompt"], "output_tokens": row["body"]["max_tokens"]}


def _about(jobs: Sequence[Ended], disturbed: str) -> dict[str, Cell]:
    """The part of a job's time that no more rows would lengthen, and what disturbed the runs."""
    return {"last shard to _SUCCESS, s": spread([job.assembly_s for job in jobs]), "others' CPU": disturbed}


def _row(who: str, rows_per_s: Sequence[float], of_the_best: Sequence[float]) -> dict[str, Cell]:
    told = f"{mean(of_the_best):.3f}"
    if len(of_the_best) > 1:
        told += f" ({min(of_the_best):.3f}–{max(of_the_best):.3f})"
    return {"who": who, "rows/s": spread(rows_per_s), "of the best": told}


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
    parser.add_argument("--concurrency", default="128,181,256,362", help="fixed ones to choose from")
    parser.add_argument("--bench", type=int, default=0, help="rows beside `vllm bench serve`; 0: none")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows")
    chosen = parser.parse_args(arguments)
    fixed = [int(number) for number in chosen.concurrency.split(",")]
    fewer = QUICK if chosen.quick else 1
    if chosen.empty:
        report_figures("upstreams-empty", [*empty(chosen.empty // fewer)])
    if chosen.rows:
        report("upstreams", [*beside_client(chosen.engine, chosen.rows // fewer, chosen.turns, fixed)])
    if chosen.bench:
        report("upstreams-bench", [*beside_bench(chosen.bench // fewer, chosen.turns, BENCH_CONCURRENCY)])


if __name__ == "__main__":
    main()
