"""Prints the table that every benchmark ends with, and keeps it under `.bench/results`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from benchmarks.runners.environments import BENCH_DIRECTORY, REPOSITORY

RESULTS_DIRECTORY = BENCH_DIRECTORY / "results"
OTHER_CPU_SHARE_MAX = 0.06
"""Above this load of other processes a run should be repeated."""

Cell = str | int | float | None


@dataclass(frozen=True)
class Figure:
    """A measured value and its goal. Without a goal it is reported only."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    better: Literal["less", "more"] = "less"

    @property
    def is_reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.better == "less" else self.value >= self.goal

    def row(self) -> dict[str, Cell]:
        return {"figure": self.name, "value": self.value, "unit": self.unit, "goal": self._verdict()}

    def _verdict(self) -> str:
        if self.goal is None:
            return ""
        sign = "≤" if self.better == "less" else "≥"
        return f"{sign} {self.goal:,g}: {'reached' if self.is_reached else 'NOT REACHED'}"


@dataclass(frozen=True)
class Circumstances:
    """When, where and under what load a figure was measured."""

    taken_at: str
    commit: str
    cpu: str
    cores: int
    load_average: float  # over the last minute

    @classmethod
    def now(cls) -> Circumstances:
        is_changed = bool(_git("status", "--porcelain", "-uno"))
        return cls(
            taken_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=_git("rev-parse", "--short", "HEAD") + ("+" if is_changed else ""),
            cpu=_cpu_name(),
            cores=os.cpu_count() or 1,
            load_average=round(os.getloadavg()[0], 1),
        )

    def __str__(self) -> str:
        return f"{self.taken_at}, commit {self.commit}, {self.cores} x {self.cpu}, load {self.load_average}"


def report(name: str, rows: Sequence[Mapping[str, Cell]], notes: Sequence[str] = ()) -> str:
    """Prints the rows, whose keys are the columns, and writes them to `.bench/results/NAME.{md,json}`."""
    about = Circumstances.now()
    text = "\n".join((f"{name}: {about}", "", markdown(rows), "", *notes))
    print(f"\n{text}", flush=True)
    RESULTS_DIRECTORY.mkdir(parents=True, exist_ok=True)
    (RESULTS_DIRECTORY / f"{name}.md").write_text(text + "\n")
    kept = {"circumstances": asdict(about), "rows": [dict(row) for row in rows], "notes": list(notes)}
    (RESULTS_DIRECTORY / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    return text


def report_figures(name: str, figures: Sequence[Figure]) -> str:
    return report(name, [figure.row() for figure in figures])


def markdown(rows: Sequence[Mapping[str, Cell]]) -> str:
    """A table with a column for every key of any row."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)]]
    lines += [[_shown(row.get(column)) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a `share` of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> str:
    """One figure, or the range of several."""
    low, high = min(values), max(values)
    return _shown(low) if len(values) == 1 else f"{_shown(low)}–{_shown(high)}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def others(cpu_share: float) -> str:
    """The share of the machine that other processes used during a run."""
    return f"{cpu_share:.0%}" + (" (disturbed)" if cpu_share > OTHER_CPU_SHARE_MAX else "")


def _shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu_name() -> str:
    """The model's name with the instruction sets that decide the speed of matrix products."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.machine()
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    values = {key.strip(): value.strip() for key, _, value in pairs}
    flags = set(values.get("flags", "").split())
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{values.get('model name', platform.machine())} ({', '.join(known)})"
