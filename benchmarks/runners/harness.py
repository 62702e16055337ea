"""The common part of all runners: load, warm up, run a workload once, check and record it.

A runner is a module with `load(arguments)`, run as a process of its own in its engine's environment. The
result goes to a file, so that an engine may print what it likes. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.measure import cpu_times, peak_rss_bytes
from benchmarks.workloads import DEFAULT_SEED, BenchRequest, make_workload, warm_up_requests

UNKNOWN_TOKEN = -1
"""Stands for a token of which only the number is known."""


class LoadedEngine(Protocol):
    """An engine that is ready to run."""

    @property
    def version(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its options, as recorded with the result."""

    @property
    def pid(self) -> int:
        """The process whose tree does the work: ours, or a server's."""

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        """Output token ids by request id: greedy, ignoring end-of-sequence, all requests offered at once."""

    def close(self) -> None:
        """Stop what was started."""


def in_batches(
    requests: Sequence[BenchRequest],
    batch_size: int,
    generate: Callable[[Sequence[BenchRequest]], dict[int, list[int]]],
) -> dict[int, list[int]]:
    """For engines that take static batches: one after another, in order of arrival."""
    outputs: dict[int, list[int]] = {}
    for start in range(0, len(requests), batch_size):
        outputs |= generate(requests[start : start + batch_size])
    return outputs


@dataclass(frozen=True)
class RunResult:
    """One run of one workload on one engine."""

    engine: str
    version: str
    workload: str
    precision: str
    threads: int
    settings: dict[str, Any]
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    load_seconds: float
    """From an empty process to ready, library imports included."""
    wall_seconds: float
    peak_rss_bytes: int
    other_cpu_share: float
    outputs: list[list[int]]

    @property
    def output_tokens_per_second(self) -> float:
        return self.num_output_tokens / self.wall_seconds

    @classmethod
    def read(cls, path: Path) -> RunResult:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def argument_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--engine", default="", help="the name to record")
    parser.add_argument("--model", required=True, help="checkpoint directory or file, in the engine's format")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--precision", required=True, choices=["float32", "bfloat16", "int8"])
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--requests", type=int, help="only the workload's first so many")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--kv-cache-gib", type=float, default=2.0)
    parser.add_argument("--result", type=Path, required=True, help="the JSON file to write")
    return parser


def run(
    load: Callable[[argparse.Namespace], LoadedEngine],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None = None,
) -> int:
    """The process's exit status: 0, or 1 with the error on stderr."""
    chosen = parser.parse_args(arguments)
    try:
        workload = make_workload(chosen.workload, chosen.seed, chosen.requests)
    except ValueError as error:
        parser.error(str(error))
    started = time.perf_counter()
    engine = load(chosen)
    load_seconds = time.perf_counter() - started
    try:
        engine.generate(warm_up_requests(workload))
        cpu_before = cpu_times(engine.pid)
        started = time.perf_counter()
        outputs = engine.generate(workload.requests)
        wall_seconds = time.perf_counter() - started
        other_cpu_share = cpu_times(engine.pid).other_share_since(cpu_before)
        problem = length_problem(workload.requests, outputs)
        if problem:
            print(problem, file=sys.stderr)
            return 1
        RunResult(
            engine=chosen.engine,
            version=engine.version,
            workload=workload.name,
            precision=chosen.precision,
            threads=chosen.threads,
            settings=dict(engine.settings),
            num_requests=len(workload.requests),
            num_prompt_tokens=workload.num_prompt_tokens,
            num_output_tokens=workload.num_output_tokens,
            load_seconds=load_seconds,
            wall_seconds=wall_seconds,
            peak_rss_bytes=peak_rss_bytes(engine.pid),
            other_cpu_share=other_cpu_share,
            outputs=[outputs[request.id] for request in workload.requests],
        ).write(chosen.result)
    finally:
        engine.close()
    return 0


def length_problem(requests: Sequence[BenchRequest], outputs: Mapping[int, Sequence[int]]) -> str | None:
    """The requests without exactly the requested number of tokens, in words; None if there are none."""
    wrong = [
        (request, len(outputs.get(request.id, ())))
        for request in requests
        if len(outputs.get(request.id, ())) != request.num_output_tokens
    ]
    if not wrong:
        return None
    request, got = wrong[0]
    return (
        f"{len(wrong)} of {len(requests)} requests got a wrong number of tokens, "
        f"the first being request {request.id}: {got} of {request.num_output_tokens}"
    )
