"""The common part of all runners: load, warm up, run a workload's items once, and record it.

A runner is a module with loaders, run as a process of its own in its engine's environment. The result goes
to a file, so that an engine may print what it likes. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import cpu_times, peak_rss_bytes

KV_CACHE_GIB = 2
ENCODER_TOKENS_MAX = 512
MATCHED_TOKENS = 3
DRAFTED_TOKENS = 16
"""How peers look drafts up in the prompt, as ours does: by how many tokens, and how many at most."""

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Outputs of the items, in their order, all offered at once: token ids, a vector, or scores."""


@dataclass(frozen=True)
class Loaded:
    """An engine that is ready to run."""

    run: Run
    version: str


@dataclass(frozen=True)
class Task:
    """A runner's arguments, with the first part of the workload, read from its file."""

    model: str
    dtype: str
    threads: int
    batch_size: int
    max_num_seqs: int
    settings: Sequence[str]
    work: Mapping[str, Any]


@dataclass(frozen=True)
class RunResult:
    """One run of one workload, or of a part of it, on one engine."""

    version: str
    load_seconds: float
    """Seconds from an empty process to ready, library imports included."""
    seconds: float
    peak_rss_bytes: int
    other_cpu_share: float
    outputs: list[Any]

    @classmethod
    def read(cls, path: Path) -> list[RunResult]:
        """The results of all parts, in order."""
        return [cls(**result) for result in json.loads(path.read_text())]


def main(loaders: Mapping[str, Callable[[Task], Loaded]], arguments: Sequence[str] | None = None) -> None:
    chosen = _parser(loaders).parse_args(arguments)
    parts = json.loads(chosen.work.read_text())
    task = Task(
        chosen.model,
        chosen.dtype,
        chosen.threads,
        chosen.batch_size,
        chosen.max_num_seqs,
        chosen.set,
        parts[0],
    )
    started_s = time.perf_counter()
    loaded = loaders[chosen.loader](task)
    load_seconds = time.perf_counter() - started_s
    results = [_measured(loaded, part, load_seconds) for part in parts]
    chosen.result.write_text(json.dumps([asdict(result) for result in results]))


def _measured(loaded: Loaded, work: Mapping[str, Any], load_seconds: float) -> RunResult:
    loaded.run(work["warm_up"])
    cpu_before = cpu_times()
    started_s = time.perf_counter()
    outputs = loaded.run(work["items"])
    seconds = time.perf_counter() - started_s
    return RunResult(
        version=loaded.version,
        load_seconds=load_seconds,
        seconds=seconds,
        peak_rss_bytes=peak_rss_bytes(),
        other_cpu_share=cpu_times().other_share_since(cpu_before),
        outputs=[_plain(output) for output in outputs],
    )


def in_batches(order: Sequence[int], batch_size: int, run: Callable[[list[int]], Sequence[Any]]) -> list[Any]:
    """Outputs by index, for engines that take static batches: `run` is given the indices of one."""
    outputs: list[Any] = [None] * len(order)
    for start in range(0, len(order), batch_size):
        indices = list(order[start : start + batch_size])
        for index, output in zip(indices, run(indices), strict=True):
            outputs[index] = output
    return outputs


def by_length(texts: Sequence[str]) -> list[int]:
    """Indices in the order of length, for engines that pad all that they are given."""
    return sorted(range(len(texts)), key=lambda index: len(texts[index]))


def first_cores(threads: int) -> str:
    """The first cores that this process may use, such as "0,1"."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])


def _plain(output: Any) -> list[float]:
    """A JSON list; numpy's numbers become Python's."""
    return [value.item() if hasattr(value, "item") else value for value in output]


def _parser(loaders: Mapping[str, Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run a workload on one engine.")
    parser.add_argument("--loader", choices=loaders, required=True)
    parser.add_argument("--model", required=True, help="checkpoint directory, in the engine's format")
    parser.add_argument("--work", type=Path, required=True, help="the JSON file of the workload")
    parser.add_argument("--result", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    return parser
