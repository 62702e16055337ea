"""Figures with their goals and the machine they were measured on, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from benchmarks.launch import REPOSITORY, RESULTS_DIRECTORY


@dataclass(frozen=True)
class Figure:
    what: str
    value: float
    unit: str
    goal: float | None = None  # None: reported only
    better: Literal["less", "more"] = "less"

    @property
    def is_reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.better == "less" else self.value >= self.goal


@dataclass(frozen=True)
class Circumstances:
    """When, where and under what load a figure was measured."""

    taken_at: str
    commit: str
    cpu: str
    cores: int
    load_average: float  # of the last minute

    @classmethod
    def now(cls) -> Circumstances:
        return cls(
            taken_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=_git("rev-parse", "--short", "HEAD")
            + ("+" if _git("status", "--porcelain", "-uno") else ""),
            cpu=_cpu(),
            cores=os.cpu_count() or 1,
            load_average=round(os.getloadavg()[0], 1),
        )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a `share` of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(name: str, figures: Sequence[Figure]) -> None:
    """Print the table and write it as JSON beside the other results."""
    about = Circumstances.now()
    print(f"\n{name}: {about.taken_at}, commit {about.commit}, {about.cores} x {about.cpu}, "
          f"load {about.load_average}\n")  # fmt: skip
    width = max(len(figure.what) for figure in figures)
    for figure in figures:
        print(f"  {figure.what:<{width}}  {figure.value:>12,.1f} {figure.unit:<8} {_verdict(figure)}")
    RESULTS_DIRECTORY.mkdir(parents=True, exist_ok=True)
    kept = {"circumstances": asdict(about), "figures": [asdict(figure) for figure in figures]}
    (RESULTS_DIRECTORY / f"reliability-{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


def _verdict(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    sign = "≤" if figure.better == "less" else "≥"
    return f"goal {sign} {figure.goal:,g}: {'reached' if figure.is_reached else 'NOT REACHED'}"


def _git(*arguments: str) -> str:
    asked = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
