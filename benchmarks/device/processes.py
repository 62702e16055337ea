"""Parts that are measured in processes of their own, on a device that this one keeps nothing on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.device.parts import Figure

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".bench" / "results"
"""Where `benchmarks.report` keeps tables."""
INTERRUPTED_S = 15.0
"""An interrupted process has so long to end those that it has started."""


class PartFailed(Exception):
    """An error: the message is the end of what a process said."""


@dataclass(frozen=True)
class Machine:
    """The device that processes run on, and the time that they have."""

    device: str
    quick: bool
    seconds_left: Callable[[], float]

    def run(self, *arguments: str) -> str:
        """Standard output of `python ARGUMENTS`. Raises `PartFailed`."""
        variables = os.environ | {"PYTHONPATH": str(ROOT), "NIGHTSHIFT_DEVICE": self.device}
        command, pipe = [sys.executable, *arguments], subprocess.PIPE
        with subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                out, errors = process.communicate(timeout=max(1.0, self.seconds_left()))
            except subprocess.TimeoutExpired as error:
                _interrupt(process)
                raise PartFailed(f"it did not end in {error.timeout:.0f} s") from error
        if process.returncode != 0:
            raise PartFailed((out + errors).strip()[-1500:])
        return out

    @property
    def engine_settings(self) -> list[str]:
        """Options that set a worker's engine as those of the other parts are."""
        if self.quick:
            return []
        settings = ("ENGINE_MAX_NUM_SEQS=256", "ENGINE_MAX_NUM_BATCHED_TOKENS=8192")
        return [word for setting in settings for word in ("--setting", setting)]


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Lets it end what it has started."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=INTERRUPTED_S)
    except subprocess.TimeoutExpired:
        process.kill()


def tests(machine: Machine, model: str) -> Iterator[Figure]:
    """The tests that need a device."""
    options = ("-q", "-p", "no:benchmark", "-p", "no:cacheprovider")
    said = machine.run("-m", "pytest", "tests/gpu", *options).strip().splitlines()[-1]
    for count, outcome in re.findall(r"(\d+) (passed|skipped|deselected)", said):
        yield Figure(model, "tests", outcome, int(count), "tests")


def load(machine: Machine, model: str) -> Iterator[Figure]:
    """Two loads of a checkpoint: the second from warm caches."""
    path = machine.run("-m", "benchmarks.device.loading", "--make", model).strip().splitlines()[-1]
    for number in ("first", "second"):
        said = machine.run("-m", "benchmarks.device.loading", path, "--device", machine.device)
        loaded = json.loads(said.strip().splitlines()[-1])
        yield from _load_figures(loaded, model, number)


def _load_figures(loaded: dict[str, Any], model: str, number: str) -> Iterator[Figure]:
    seconds: dict[str, float] = loaded["seconds"]
    yield Figure(model, "load", f"{number}, all", sum(seconds.values()), "s")
    for part, part_s in seconds.items():
        yield Figure(model, "load", f"{number}, {part}", part_s, "s")
    moving_s = seconds["weights to the device"]
    yield Figure(model, "load", f"{number}, size of weights", loaded["weight_bytes"] / 1e9, "GB")
    yield Figure(
        model, "load", f"{number}, speed to the device", loaded["weight_bytes"] / moving_s / 1e9, "GB/s"
    )
    for kind, count in loaded["kernels"].items():
        yield Figure(model, "load", f"{number}, kernels {kind}", count, "kernels")
        yield Figure(model, "load", f"{number}, kernels {kind}, time", loaded["kernel_seconds"][kind], "s")


def service(machine: Machine, model: str) -> Iterator[Figure]:
    """The service over its bare engine, with even and uneven rows."""
    even, uneven = ("100", "100") if machine.quick else ("6000", "4000")
    work = ("--medium", "0", "--demo", "0", "--encoder", "0", "--even", even, "--uneven", uneven)
    machine.run("-m", "benchmarks.service_overhead", "--decoder", model, *work, *machine.engine_settings)
    for row in _kept("service-overhead"):
        alone, whole = row["tok/s alone"], row["tok/s service"]
        yield Figure(model, "service", f"{row['work']}, engine alone", alone, "tokens/s")
        yield Figure(model, "service", f"{row['work']}, service", whole, "tokens/s")
        yield Figure(model, "service", f"{row['work']}, service / engine", whole / alone, "")


def chats(machine: Machine, model: str) -> Iterator[Figure]:
    """Chats beside bulk."""
    work = ("--rows", "200", "--seconds", "2", "--rates", "5") if machine.quick else ()
    machine.run("-m", "benchmarks.chats", "--model", model, *work, *machine.engine_settings)
    for row in _kept("chats"):
        rate = f"{row['chats/s']:g} a second"
        for column in ("alone p50, ms", "alone p99, ms", "beside p50, ms", "beside p99, ms"):
            yield Figure(model, "chats", f"{rate}, {column.removesuffix(', ms')}", row[column], "ms")
        kept = row["bulk beside, tok/s"] / row["bulk alone, tok/s"]
        yield Figure(model, "chats", f"{rate}, share that bulk keeps", kept, "")


def _kept(name: str) -> Sequence[dict[str, Any]]:
    """The rows of a table that a command has just kept."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


OF_MACHINE: Mapping[str, Callable[[Machine, str], Iterator[Figure]]] = {
    "tests": tests,
    "load": load,
    "service": service,
    "chats": chats,
}
"""Parts for a model's name, by their own."""
