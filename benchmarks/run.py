"""Measure our engine and its peers on the same work, interleaved, and write the table.

Every run is a process of its own. Ours runs before and after each peer, so that a peer is compared with what
our engine did in the same minutes. A peer that cannot be installed stays in the table, with the reason.

    make bench                                      # or: python -m benchmarks.run --help
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks import machine, roofline, table
from benchmarks.launch import LOGS_DIRECTORY, REPOSITORY, RESULTS_DIRECTORY, Launch, RunFailedError, prepare
from benchmarks.models import SHAPES
from benchmarks.peers import ENGINES, OURS, PRECISIONS
from benchmarks.runners import nightshift
from benchmarks.workloads import DEFAULT_SEED, RECIPES, make_workload


@dataclass(frozen=True)
class Plan:
    """The checked choices of the command line."""

    engines: tuple[str, ...]
    workloads: tuple[str, ...]
    precisions: tuple[str, ...]
    rounds: int
    threads: int
    timeout_seconds: float
    seed: int
    num_requests: int | None
    max_num_seqs: int
    our_options: tuple[str, ...]
    with_limits: bool

    @property
    def runner_options(self) -> tuple[str, ...]:
        """Options of every engine's runner."""
        options = ("--seed", str(self.seed), "--max-num-seqs", str(self.max_num_seqs))
        return options if self.num_requests is None else (*options, "--requests", str(self.num_requests))


def parse(arguments: Sequence[str] | None = None) -> Plan:
    parser = argparse.ArgumentParser(
        prog="make bench", description="Measure our engine and its peers on the same work, interleaved."
    )
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}; default: all")
    parser.add_argument("--workloads", default="small,medium", help=f"of {', '.join(RECIPES)}")
    parser.add_argument(
        "--dtypes", default="bfloat16,float32", help=f"of {', '.join(PRECISIONS)}; int8: of the weights"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often the whole order is run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="of a single run")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the workloads")
    parser.add_argument("--requests", type=int, help="only the first so many of each workload, to try things")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="sequences at once, for every engine")
    parser.add_argument("--no-limits", action="store_true", help="do not measure what the machine could do")
    ours = parser.add_argument_group("our engine")
    nightshift.add_engine_arguments(ours)
    chosen = parser.parse_args(arguments)
    for name in ("rounds", "threads", "timeout", "requests", "max_num_seqs"):
        value = getattr(chosen, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    return Plan(
        engines=_names(parser, "--engines", chosen.engines, ENGINES),
        workloads=_names(parser, "--workloads", chosen.workloads, RECIPES),
        precisions=_names(parser, "--dtypes", chosen.dtypes, PRECISIONS),
        rounds=chosen.rounds,
        threads=chosen.threads,
        timeout_seconds=chosen.timeout,
        seed=chosen.seed,
        num_requests=chosen.requests,
        max_num_seqs=chosen.max_num_seqs,
        our_options=_our_options(chosen),
        with_limits=not chosen.no_limits,
    )


def order(engines: Sequence[str]) -> list[str]:
    """One round: ours before and after each peer, and once if there is no peer."""
    peers = [engine for engine in engines if engine != OURS]
    if OURS not in engines:
        return peers
    return [OURS, *(name for peer in peers for name in (peer, OURS))]


def run_all(plan: Plan, launches: Mapping[tuple[str, str, str], Launch | str]) -> Iterator[table.Run]:
    """Every run in order, yielded as it ends, with a line of progress; first those that cannot be run."""
    places = []
    for workload in plan.workloads:
        for precision in plan.precisions:
            usable = []
            for name in plan.engines:
                launch = launches[name, RECIPES[workload].model, precision]
                if isinstance(launch, str):
                    yield table.Run(name, workload, precision, None, launch)
                else:
                    usable.append(name)
            places += [(workload, precision, name) for name in order(usable)]
    failed: set[tuple[str, str, str]] = set()
    for number, place in enumerate(places * plan.rounds, 1):
        if place in failed:
            continue  # a failed run is not repeated in later rounds
        workload, precision, name = place
        _show(f"[{number}/{len(places) * plan.rounds}] {workload} {precision} {name} … ", end="")
        launch = launches[name, RECIPES[workload].model, precision]
        assert isinstance(launch, Launch)
        options = plan.runner_options + (plan.our_options if name == OURS else ())
        try:
            result = launch.run(workload, precision, plan.threads, options, plan.timeout_seconds)
        except RunFailedError as error:
            failed.add(place)
            _show(f"no figure: {error}")
            yield table.Run(name, workload, precision, None, str(error))
            continue
        _show(
            f"{result.output_tokens_per_second:.0f} tok/s ({result.wall_seconds:.1f} s after "
            f"{result.load_seconds:.0f} s of loading; others' CPU {result.other_cpu_share:.0%})"
        )
        yield table.Run(name, workload, precision, result)


def measured_limits(plan: Plan) -> tuple[dict[str, machine.Machine], dict[tuple[str, str], roofline.Limit]]:
    """The machine per checkpoint size; the limit per workload and dtype (for int8 no peak is measured)."""
    machines: dict[str, machine.Machine] = {}
    limits: dict[tuple[str, str], roofline.Limit] = {}
    for name in plan.workloads:
        workload = make_workload(name, plan.seed, plan.num_requests)
        shape = SHAPES[workload.model]
        if workload.model not in machines:
            _show(f"what this machine can do, with {workload.model}'s shapes … ", end="")
            machines[workload.model] = machine.measure(workload.model, plan.threads)
            _show(f"{machines[workload.model].read_bytes_per_second / 1e9:.1f} GB/s read")
        for precision in plan.precisions:
            if precision in roofline.BYTES:
                limits[name, precision] = roofline.limit(
                    workload, shape, machines[workload.model], precision, plan.max_num_seqs
                )
    return machines, limits


def main(arguments: Sequence[str] | None = None) -> int:
    plan = parse(arguments)
    for directory in (LOGS_DIRECTORY, RESULTS_DIRECTORY):
        directory.mkdir(parents=True, exist_ok=True)
    models = list(dict.fromkeys(RECIPES[name].model for name in plan.workloads))
    launches = prepare(plan.engines, models, plan.precisions)
    machines, limits = measured_limits(plan) if plan.with_limits else ({}, {})
    runs = list(run_all(plan, launches))
    rows = table.rows(runs, {key: limit.output_tokens_per_second for key, limit in limits.items()})
    report = {
        "plan": asdict(plan),
        "cpu": machine.cpu_name(),
        "machines": {name: asdict(measured) for name, measured in machines.items()},
        "limits": [
            {"workload": key[0], "precision": key[1], **asdict(limit)} for key, limit in limits.items()
        ],
        "rows": [asdict(row) for row in rows],
        "runs": [_without_outputs(run) for run in runs],
    }
    text = _heading(plan, machines, limits) + table.markdown(rows)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix, content in (("json", json.dumps(report, indent=1)), ("md", text)):
        (RESULTS_DIRECTORY / f"{stamp}.{suffix}").write_text(content + "\n")
    _show("\n" + text)
    _show(f"written to {RESULTS_DIRECTORY.relative_to(REPOSITORY)}/{stamp}.json and .md")
    return 0 if any(row.tokens_per_second for row in rows) else 1


def _names(parser: argparse.ArgumentParser, option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"{option} takes names of {', '.join(known)}, got {text!r}")
    return names


def _our_options(chosen: argparse.Namespace) -> tuple[str, ...]:
    options: list[str] = ["--deterministic"] if chosen.deterministic else []
    for name in ("kv_dtype", "weights"):
        if getattr(chosen, name):
            options += [f"--{name.replace('_', '-')}", getattr(chosen, name)]
    for assignment in chosen.set:
        options += ["--set", assignment]
    return tuple(options)


def _without_outputs(run: table.Run) -> dict[str, object]:
    fields = asdict(run)
    if fields["result"] is not None:
        del fields["result"]["outputs"]
    return fields


def _heading(
    plan: Plan, machines: dict[str, machine.Machine], limits: dict[tuple[str, str], roofline.Limit]
) -> str:
    lines = [f"{machine.cpu_name()}, threads: {plan.threads}, {time.strftime('%Y-%m-%d %H:%M')}."]
    for name, measured in machines.items():
        peaks = ", ".join(
            f"{dtype} {measured.best_flops(dtype) / 1e9:.0f} GFLOP/s" for dtype in machine.DTYPES
        )
        lines.append(f"{name}: {measured.read_bytes_per_second / 1e9:.1f} GB/s read, {peaks}.")
    for (workload_name, dtype), limit in limits.items():
        workload = make_workload(workload_name, plan.seed, plan.num_requests)
        arguments = (workload, SHAPES[workload.model], machines[workload.model], dtype, plan.max_num_seqs)
        speeds = {
            kind: roofline.practical_limit(*arguments, kind).output_tokens_per_second
            for kind in machine.GEMM_KINDS
        }
        practical = ", ".join(f"{speed:.0f} with {kind} GEMMs as measured" for kind, speed in speeds.items())
        lines.append(
            f"{workload_name} {dtype}: the machine's limit is {limit.output_tokens_per_second:.0f} tok/s "
            f"({practical}); {limit.num_steps} steps, mean batch {limit.mean_batch:.1f}."
        )
    return "\n".join(lines) + "\n\n"


def _show(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main())
