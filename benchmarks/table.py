"""From single runs to a table: medians, ratios to our own runs beside them, shares of the machine's limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.peers import OURS
from benchmarks.runners.harness import UNKNOWN_TOKEN, RunResult

OTHER_CPU_SHARE_MAX = 0.06
"""Above this load of other processes a run should be repeated."""


@dataclass(frozen=True)
class Run:
    """One run in order: what was run, and its result or problem."""

    engine: str
    workload: str
    precision: str
    result: RunResult | None
    problem: str | None = None


@dataclass(frozen=True)
class Row:
    """One engine on one workload in one precision. Without `tokens_per_second`, `problem` says why."""

    workload: str
    precision: str
    engine: str
    version: str = ""
    num_runs: int = 0
    tokens_per_second: float | None = None
    tokens_per_second_min: float | None = None
    tokens_per_second_max: float | None = None
    ours_over_it: float | None = None
    """How many times faster ours was: the median over its runs, each against ours just before and after."""
    of_limit: float | None = None
    """Share of the machine's limit in this precision."""
    same_outputs: float | None = None
    """Share of requests with the same tokens as ours. In bfloat16 rounding alone makes them differ."""
    peak_rss_bytes: int | None = None
    load_seconds: float | None = None
    other_cpu_share: float | None = None
    problem: str | None = None


def rows(runs: Sequence[Run], limits: Mapping[tuple[str, str], float]) -> list[Row]:
    """One row per workload, precision and engine, in order of appearance; `limits` in tokens per second."""
    keys = dict.fromkeys((run.workload, run.precision, run.engine) for run in runs)
    return [_row(*key, runs, limits.get(key[:2])) for key in keys]


def ratios_to_ours(runs: Sequence[Run], workload: str, precision: str, engine: str) -> list[float]:
    """Our speed over the engine's, one per run of it; ours is the mean of our nearest runs before and after.

    Speeds drift with other load on the host and its temperature, so adjacent runs are compared.
    """
    alike = [run for run in runs if (run.workload, run.precision) == (workload, precision)]
    ratios = []
    for place, run in enumerate(alike):
        if run.engine != engine or run.result is None:
            continue
        before = next((r for r in reversed(alike[:place]) if _is_ours(r)), None)
        after = next((r for r in alike[place + 1 :] if _is_ours(r)), None)
        beside = [r.result.output_tokens_per_second for r in (before, after) if r is not None and r.result]
        if beside:
            ratios.append(mean(beside) / run.result.output_tokens_per_second)
    return ratios


def same_outputs(result: RunResult, reference: RunResult) -> float | None:
    """Share of requests with exactly the same tokens; None where the result has none to compare."""
    if any(UNKNOWN_TOKEN in output for output in result.outputs):
        return None
    pairs = list(zip(result.outputs, reference.outputs, strict=True))
    return sum(a == b for a, b in pairs) / len(pairs)


def markdown(table: Iterable[Row]) -> str:
    """Tables per workload and precision, fastest engine first, engines without a figure at the end."""
    table = list(table)
    parts = []
    for key in dict.fromkeys((row.workload, row.precision) for row in table):
        chosen = [row for row in table if (row.workload, row.precision) == key]
        chosen.sort(key=lambda row: -(row.tokens_per_second or 0.0))
        parts.append(f"### {key[0]}, {key[1]}\n")
        parts.append(
            "| engine | output tok/s | range | ours / it | of the machine's limit | same tokens as ours "
            "| peak RSS, MB | load, s | others' CPU |"
        )
        parts.append("|---|--:|---|--:|--:|--:|--:|--:|--:|")
        parts += [_markdown_row(row) for row in chosen]
        parts.append("")
    return "\n".join(parts)


def _is_ours(run: Run) -> bool:
    return run.engine == OURS and run.result is not None


def _row(workload: str, precision: str, engine: str, runs: Sequence[Run], limit: float | None) -> Row:
    alike = [run for run in runs if (run.workload, run.precision) == (workload, precision)]
    results = [run.result for run in alike if run.engine == engine and run.result is not None]
    problem = next((run.problem for run in alike if run.engine == engine and run.problem), None)
    if not results:
        return Row(workload, precision, engine, problem=problem or "no result")
    speeds = [result.output_tokens_per_second for result in results]
    ours = next((run.result for run in alike if _is_ours(run)), None)
    ratios = [] if engine == OURS else ratios_to_ours(runs, workload, precision, engine)
    return Row(
        workload=workload,
        precision=precision,
        engine=engine,
        version=results[0].version,
        num_runs=len(results),
        tokens_per_second=median(speeds),
        tokens_per_second_min=min(speeds),
        tokens_per_second_max=max(speeds),
        ours_over_it=median(ratios) if ratios else None,
        of_limit=median(speeds) / limit if limit else None,
        same_outputs=same_outputs(results[0], ours) if ours is not None and engine != OURS else None,
        peak_rss_bytes=max(result.peak_rss_bytes for result in results),
        load_seconds=median(result.load_seconds for result in results),
        other_cpu_share=max(result.other_cpu_share for result in results),
        problem=problem,
    )


def _markdown_row(row: Row) -> str:
    name = f"{row.engine} {row.version}" if row.version and row.engine != OURS else row.engine
    if row.tokens_per_second is None:
        return f"| {name} | – | {row.problem} | | | | | | |"
    assert row.tokens_per_second_min is not None
    assert row.tokens_per_second_max is not None
    assert row.peak_rss_bytes is not None
    spread = f"{row.tokens_per_second_min:.0f}–{row.tokens_per_second_max:.0f} ({row.num_runs})"
    if row.problem:
        spread += f", and failed: {row.problem}"
    share = row.other_cpu_share or 0.0
    cells = [
        name,
        f"{row.tokens_per_second:.0f}",
        spread,
        _or_dash(row.ours_over_it, "{:.2f}"),
        _or_dash(row.of_limit, "{:.0%}"),
        _or_dash(row.same_outputs, "{:.0%}"),
        f"{row.peak_rss_bytes / 1e6:.0f}",
        _or_dash(row.load_seconds, "{:.0f}"),
        f"{share:.0%}" + (" (disturbed)" if share > OTHER_CPU_SHARE_MAX else ""),
    ]
    return "| " + " | ".join(cells) + " |"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
