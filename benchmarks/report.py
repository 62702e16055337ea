"""A benchmark's table, with when, where and under what load it was taken: printed and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from benchmarks.launch import RESULTS_DIRECTORY
from benchmarks.reliability.figures import Circumstances
from benchmarks.table import OTHER_CPU_SHARE_MAX

Cell = str | int | float | None


def report(name: str, rows: Sequence[Mapping[str, Cell]], notes: Sequence[str] = ()) -> str:
    """Print the rows, whose keys are the columns, and write them to `.bench/results/NAME.{md,json}`."""
    about = Circumstances.now()
    head = f"{name}: {about.taken_at}, commit {about.commit}, {about.cores} x {about.cpu}, "
    head += f"load {about.load_average}"
    text = "\n".join((head, "", markdown(rows), "", *notes))
    print(f"\n{text}", flush=True)
    RESULTS_DIRECTORY.mkdir(parents=True, exist_ok=True)
    (RESULTS_DIRECTORY / f"{name}.md").write_text(text + "\n")
    kept = {"circumstances": asdict(about), "rows": [dict(row) for row in rows], "notes": list(notes)}
    (RESULTS_DIRECTORY / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    return text


def markdown(rows: Sequence[Mapping[str, Cell]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)]]
    lines += [[_shown(row.get(column)) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def spread(values: Sequence[float]) -> str:
    """One figure, or the range of several."""
    low, high = min(values), max(values)
    return _shown(low) if len(values) == 1 else f"{_shown(low)}–{_shown(high)}"


def share(part: float, of: float) -> str:
    return f"{100 * part / of:.1f} %" if of else "–"


def others(share_of_cpu: float) -> str:
    """How much of the machine other processes used during a run."""
    return f"{share_of_cpu:.0%}" + (" (disturbed)" if share_of_cpu > OTHER_CPU_SHARE_MAX else "")


def _shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
