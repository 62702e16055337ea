"""Measures our engine and its peers on the same work, in turns, and writes the table.

Every run is a process of its own. Ours runs before and after each peer, so that a peer is compared with what
our engine did in the same minutes. A peer that cannot be installed stays in the table, with the reason.

    make bench                                      # or: python -m benchmarks.run --help
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks.fixtures.checkpoints import DTYPES, NARROW
from benchmarks.fixtures.workloads import DEFAULT_SEED, RECIPES, WORKLOADS, Workload, make_workload
from benchmarks.report import Cell, others, report, spread
from benchmarks.runners.environments import PeerUnavailableError
from benchmarks.runners.harness import RunResult
from benchmarks.runners.launch import ENGINES, OURS, PLAIN, Launch, RunFailedError, prepare

TRIAL_ITEMS = 200
"""Items with which the best batch size of a static peer is found."""
DIFFERENCE_MAX = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest difference of a score, or of a number of a vector of length 1, between ours and a peer."""


@dataclass(frozen=True)
class Plan:
    """The checked choices of the command line."""

    engines: tuple[str, ...]
    workloads: tuple[str, ...]
    dtypes: tuple[str, ...]
    rounds: int
    threads: int
    timeout_s: float
    seed: int
    count: int | None
    runner_options: tuple[str, ...]
    """Options of every engine's runner."""
    our_options: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One run in order, of one part of the workload: its engine, and its result or the problem."""

    engine: str
    result: RunResult | None
    problem: str | None = None


def parse(arguments: Sequence[str] | None = None) -> Plan:
    parser = argparse.ArgumentParser(
        prog="make bench", description="Measure our engine and its peers on the same work, in turns."
    )
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}; default: all")
    parser.add_argument("--workloads", default="small,medium", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--dtypes", default="bfloat16,float32", help=f"of {', '.join((*DTYPES, *NARROW))}")
    parser.add_argument("--rounds", type=int, default=1, help="how often the whole order is run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="of a single run")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the workloads")
    parser.add_argument("--count", type=int, help="items of each workload, to try things")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="sequences at once, for every engine")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="an EngineConfig field of ours"
    )
    chosen = parser.parse_args(arguments)
    for name in ("rounds", "threads", "timeout", "count", "max_num_seqs"):
        value = getattr(chosen, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    plan = Plan(
        engines=_names(parser, "--engines", chosen.engines, ENGINES),
        workloads=_names(parser, "--workloads", chosen.workloads, WORKLOADS),
        dtypes=_names(parser, "--dtypes", chosen.dtypes, (*DTYPES, *NARROW)),
        rounds=chosen.rounds,
        threads=chosen.threads,
        timeout_s=chosen.timeout,
        seed=chosen.seed,
        count=chosen.count,
        runner_options=("--max-num-seqs", str(chosen.max_num_seqs)),
        our_options=tuple(part for assignment in chosen.set for part in ("--set", assignment)),
    )
    texts = [name for name in plan.workloads if name not in RECIPES]
    if texts and any(dtype in NARROW for dtype in plan.dtypes):
        parser.error(f"--dtypes {', '.join(NARROW)} are for decoders, not for {', '.join(texts)}")
    return plan


def order(engines: Sequence[str]) -> list[str]:
    """One round: ours before and after each peer, and once if there is no peer."""
    peers = [engine for engine in engines if engine != OURS]
    if OURS not in engines:
        return peers
    return [OURS, *(name for peer in peers for name in (peer, OURS))]


def run_all(plan: Plan, workload: Workload, dtype: str) -> Iterator[list[Run]]:
    """Every run in order, part by part; first the engines that cannot be run. A run that failed is not
    repeated.
    """
    parts = workload.parts()
    launches: dict[str, tuple[Launch, tuple[str, ...]]] = {}
    for name in plan.engines:
        if workload.kind not in ENGINES[name].loaders:
            continue
        if name == PLAIN and dtype not in NARROW and not workload.drafts:
            continue  # it would be ours again
        try:
            launch = prepare(name, workload, dtype)
            launches[name] = (launch, _options(plan, launch, workload, dtype))
        except (PeerUnavailableError, RunFailedError) as error:
            yield [Run(name, None, str(error)) for _ in parts]
    for name in order([*launches]) * plan.rounds:
        if name in launches:
            launch, options = launches[name]
            print(f"{workload.name} {dtype} {name} … ", end="", flush=True)
            try:
                results = launch.run(workload, dtype, plan.threads, plan.timeout_s, options)
                for part, result in zip(parts, results, strict=True):
                    _check_lengths(part, result.outputs)
            except RunFailedError as error:
                del launches[name]
                print(f"no figure: {error}", flush=True)
                yield [Run(name, None, str(error)) for _ in parts]
            else:
                speeds = [part.amount / result.seconds for part, result in zip(parts, results, strict=True)]
                seconds = sum(result.seconds for result in results)
                shown = ", ".join(f"{speed:.0f}" for speed in speeds)
                print(f"{shown} {workload.unit}/s in {seconds:.1f} s", flush=True)
                yield [Run(name, result) for result in results]


def rows(runs: Sequence[Run], workload: Workload, dtype: str) -> list[dict[str, Cell]]:
    """One row per engine, the fastest first and those without a figure last."""
    made = [_row(name, runs, workload, dtype) for name in dict.fromkeys(run.engine for run in runs)]
    return sorted(made, key=lambda row: -float(row.get("per second") or 0.0))


def ratios_to_ours(runs: Sequence[Run], engine: str) -> list[float]:
    """Our speed over the engine's, one per run of it; ours is the mean of our nearest runs before and after.

    Speeds drift with other load on the host and its temperature, so adjacent runs are compared.
    """
    ratios = []
    for place, run in enumerate(runs):
        if run.engine != engine or run.result is None:
            continue
        before = next((one.result for one in reversed(runs[:place]) if _is_ours(one)), None)
        after = next((one.result for one in runs[place + 1 :] if _is_ours(one)), None)
        speeds = [1 / result.seconds for result in (before, after) if result is not None]
        if speeds:
            ratios.append(mean(speeds) * run.result.seconds)
    return ratios


def agreement(workload: Workload, dtype: str, outputs: Sequence[Any], ours: Sequence[Any]) -> str:
    """The share of a decoder's outputs that are equal, or the largest difference of other outputs."""
    pairs = list(zip(outputs, ours, strict=True))
    if workload.kind == "decoder":
        return f"{sum(one == other for one, other in pairs) / len(pairs):.0%} equal"
    difference = max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
    verdict = "" if difference <= DIFFERENCE_MAX[dtype] else ": OTHER RESULTS"
    return f"{difference:.1e}{verdict}"


def main(arguments: Sequence[str] | None = None) -> int:
    plan = parse(arguments)
    table: list[dict[str, Cell]] = []
    for name in plan.workloads:
        workload = make_workload(name, plan.seed, plan.count)
        for dtype in plan.dtypes:
            runs = list(run_all(plan, workload, dtype))
            for number, part in enumerate(workload.parts()):
                table += rows([run_of_parts[number] for run_of_parts in runs], part, dtype)
    notes = [f"{plan.threads} threads, seed {plan.seed}, {plan.rounds} rounds {' '.join(plan.our_options)}"]
    report("peers", table, notes)
    return 0 if any(row.get("per second") for row in table) else 1


def _options(plan: Plan, launch: Launch, workload: Workload, dtype: str) -> tuple[str, ...]:
    """A runner's options, with the batch size that is fastest over the first items."""
    options = plan.runner_options
    if launch.peer.name == OURS:
        options += plan.our_options + (("--set", "weight_dtype=int8") if dtype == "int8" else ())
    sizes = launch.peer.batch_sizes.get(workload.kind, ())
    if not sizes:
        return options
    seconds = {}
    for size in sizes if len(sizes) > 1 else ():
        trial = workload.first(TRIAL_ITEMS)
        sized = (*options, "--batch-size", str(size))
        [result] = launch.run(trial, dtype, plan.threads, plan.timeout_s, sized)
        seconds[size] = result.seconds
    return (*options, "--batch-size", str(min(seconds, key=lambda size: seconds[size], default=sizes[0])))


def _row(engine: str, runs: Sequence[Run], workload: Workload, dtype: str) -> dict[str, Cell]:
    head: dict[str, Cell] = {"workload": f"{workload.name}, {dtype}", "engine": engine}
    results = [run.result for run in runs if run.engine == engine and run.result is not None]
    problem = next((run.problem for run in runs if run.engine == engine and run.problem), None)
    if not results:
        return head | {"problem": problem or "no result"}
    speeds = [workload.amount / result.seconds for result in results]
    ours = next((run.result for run in runs if _is_ours(run)), None)
    ratios = [] if engine == OURS else ratios_to_ours(runs, engine)
    compared = None
    if ours is not None and engine != OURS:
        compared = agreement(workload, dtype, results[0].outputs, ours.outputs)
    return head | {
        "version": results[0].version,
        "unit": workload.unit,
        "per second": median(speeds),
        "range": spread(speeds),
        "ours / it": median(ratios) if ratios else None,
        "beside ours": compared,
        "peak MB": round(max(result.peak_rss_bytes for result in results) / 1e6),
        "load, s": median(result.load_seconds for result in results),
        "others' CPU": others(max(result.other_cpu_share for result in results)),
        "problem": problem or "",
    }


def _check_lengths(workload: Workload, outputs: Sequence[Any]) -> None:
    """Raises RunFailedError where a decoder made another number of tokens than an item wants."""
    if workload.kind != "decoder":
        return
    pairs = zip(workload.items, outputs, strict=True)
    wrong = [(number, len(got), item[1]) for number, (item, got) in enumerate(pairs) if len(got) != item[1]]
    if wrong:
        number, got, wanted = wrong[0]
        raise RunFailedError(
            f"{len(wrong)} of {len(outputs)} requests got a wrong number of tokens, "
            f"the first being request {number}: {got} of {wanted}"
        )


def _is_ours(run: Run) -> bool:
    return run.engine == OURS and run.result is not None


def _names(parser: argparse.ArgumentParser, option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"{option} takes names of {', '.join(known)}, got {text!r}")
    return names


if __name__ == "__main__":
    sys.exit(main())
