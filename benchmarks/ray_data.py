"""Embedding from Parquet to Parquet by Nightshift, beside Ray Data with the same encoder.

    python -m benchmarks.ray_data                   # rows per second
    python -m benchmarks.ray_data --kills           # what a killed process costs

Two processes with one torch thread each, batches of 64 texts in Ray's actors. Nightshift is its real
processes with SQLite and a directory, and `nightshift run`. Ray is a cluster on this machine, which runs
between two runs of ours. With --kills it also runs with its CheckpointConfig.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Final, Literal

from benchmarks import checkpoints, environments, records
from benchmarks.embedding_runs import (
    PROCESSES,
    System,
    Texts,
    kill_session,
    on_nightshift,
    on_ray,
    wait_for_end,
)
from benchmarks.environments import PeerUnavailableError
from benchmarks.measure import adopt_orphans, cpu_times
from benchmarks.report import Cell, others, report, share
from tests.waiting import wait_for

OURS: Final = "Nightshift"
RAY: Final = "Ray Data 2.60"
WAIT_S: Final = 3600.0

Opened = Callable[[], AbstractContextManager[System]]
Victim = Literal["nothing", "worker", "driver"]


@dataclass(frozen=True)
class Run:
    """Times in seconds of CLOCK_MONOTONIC."""

    system: str
    opened_s: float
    """Nothing of it ran before."""
    started_s: float
    """Its driver, or our command."""
    first_s: float
    ended_s: float
    rows: int
    rows_begun: int
    rows_missing: int
    rows_double: int
    rows_a_call: float
    """Of the encoder; more than a pass of the model may take."""
    encoding_s: float
    """In calls of the encoder, all processes together."""
    other_cpu_share: float

    @property
    def per_s(self) -> float:
        """Start-up excluded."""
        return self.rows / (self.ended_s - self.first_s)


def measured(name: str, opened: Opened, victim: Victim = "nothing") -> Run:
    before, opened_s = cpu_times(), time.monotonic()
    with opened() as system:
        started_s = time.monotonic()
        process = system.start()
        try:
            if victim != "nothing":
                wait_for_half(system, process)
            if victim == "worker":
                os.kill(records.calls_begun(system.place.records)[-1].pid, signal.SIGKILL)
            if victim == "driver":
                kill_session(process)
                process = system.start()
            wait_for_end(process)
        finally:
            kill_session(process)
        place, found = system.place, system.place.output_ids()
        return Run(
            system=name,
            opened_s=opened_s,
            started_s=started_s,
            first_s=place.first_call_s,
            ended_s=system.ended_s(),
            rows=system.texts.rows,
            rows_begun=place.rows_begun(),
            rows_missing=system.texts.rows - len(found),
            rows_double=found.total() - len(found),
            rows_a_call=place.rows_begun() / len(records.calls_begun(place.records)),
            encoding_s=sum(call.ended_ns - call.began_ns for call in records.calls_ended(place.records))
            / 1e9,
            other_cpu_share=cpu_times().other_share_since(before),
        )


def wait_for_half(system: System, process: subprocess.Popen[str]) -> None:
    """Until half of the rows were begun. Raises RuntimeError where the process ends before."""
    half = system.texts.rows / 2
    wait_for(
        "half of the rows",
        lambda: process.poll() is not None or system.place.rows_begun() >= half,
        WAIT_S,
    )
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended before it was to be killed: more rows would take longer")


def speeds(texts: Texts, rounds: int) -> None:
    runs = [measured(OURS, partial(on_nightshift, texts))]
    for _ in range(rounds):
        runs.append(measured(RAY, partial(on_ray, texts)))
        runs.append(measured(OURS, partial(on_nightshift, texts)))
        print(f"  {[f'{run.system}: {run.per_s:.0f} rows/s' for run in runs]}", flush=True)
    peers = [place for place, run in enumerate(runs) if run.system == RAY]
    ratios = [mean((runs[at - 1].per_s, runs[at + 1].per_s)) / runs[at].per_s for at in peers]
    report(
        "ray-data",
        [*map(_speed_row, runs)],
        [f"Ours / Ray's, from the first batch: {', '.join(f'{ratio:.2f}' for ratio in ratios)}"],
    )


def _speed_row(run: Run) -> dict[str, Cell]:
    return {
        "system": run.system,
        "rows": run.rows,
        "first batch to complete output, rows/s": run.per_s,
        "command to complete output, rows/s": run.rows / (run.ended_s - run.started_s),
        "from nothing, rows/s": run.rows / (run.ended_s - run.opened_s),
        "command to first batch, s": run.first_s - run.started_s,
        "nothing to first batch, s": run.first_s - run.opened_s,
        "rows a call": run.rows_a_call,
        "in the encoder": share(run.encoding_s, PROCESSES * (run.ended_s - run.first_s)),
        "rows missing": run.rows_missing,
        "others' CPU": others(run.other_cpu_share),
    }


def kills(texts: Texts) -> Iterator[dict[str, Cell]]:
    systems: dict[str, Opened] = {
        RAY: partial(on_ray, texts),
        f"{RAY}, checkpoint": partial(on_ray, texts, has_checkpoint=True),
        OURS: partial(on_nightshift, texts),
    }
    victims: tuple[Victim, ...] = ("nothing", "worker", "driver")
    for victim in victims:
        for name, opened in systems.items():
            run = measured(name, opened, victim)
            print(f"  {victim} killed, {name}: {run.ended_s - run.started_s:.0f} s", flush=True)
            yield {
                "killed": victim,
                "system": name,
                "rows computed twice": run.rows_begun - run.rows,
                "command to complete output, s": run.ended_s - run.started_s,
                "rows missing": run.rows_missing,
                "rows double": run.rows_double,
                "others' CPU": others(run.other_cpu_share),
            }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1, help="of Ray's runs between two of ours")
    parser.add_argument("--encoder", default="minilm", choices=["minilm", "minilm-tiny"])
    parser.add_argument("--kills", action="store_true", help="kill a worker, then the driver, half-way")
    chosen = parser.parse_args(arguments)
    try:
        environments.ensure(environments.ENVIRONMENTS["ray"])
    except PeerUnavailableError as error:
        parser.exit(1, f"Ray Data: {error}\n")
    adopt_orphans()  # Ray's processes outlive their driver
    texts = Texts.make(checkpoints.ensure_encoder(chosen.encoder), chosen.rows)
    if not chosen.kills:
        speeds(texts, chosen.rounds)
        return
    report(
        "ray-data-kills",
        [*kills(texts)],
        [
            "A worker is an actor or our worker process, the driver Ray's script or our command; SIGKILL "
            "once half of the rows were begun. The driver is started again at once."
        ],
    )


if __name__ == "__main__":
    main()
