"""An example from the command line: train, start the service, run, check, stop."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.harness.outputs import WrongOutput
from examples.harness.service import Service, running

KEPT = Path(".examples")  # trained models, and the logs of a service that had to be killed


class NotHere(Exception):
    """The machine lacks what an example is about; the message says what to install."""


@dataclass(frozen=True)
class Example:
    """A workload. `check` runs it and returns the problems it found with the answers."""

    name: str
    summary: str
    models: Callable[[Path], list[Path]]  # trained into, or found in, the directory; none: the demo model
    check: Callable[[Service, Path], list[str]]  # in an empty directory that jobs may name


def main(*examples: Example) -> None:
    """Runs them in one service, and ends the process: 0 only if every answer is as good as it has to be."""
    parser = argparse.ArgumentParser(description="\n".join(example.summary for example in examples))
    parser.parse_args()
    try:
        problems = _problems(examples)
    except NotHere as error:
        print(f"NOT RUN: {error}", file=sys.stderr)
        sys.exit(2)
    for problem in problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    names = ", ".join(example.name for example in examples)
    print(f"{names} FAILED" if problems else f"{names} passed")
    sys.exit(1 if problems else 0)


def checked(example: Example, service: Service, folder: Path) -> list[str]:
    """The problems of one example, an output without its rows among them."""
    folder.mkdir(parents=True)
    try:
        return example.check(service, folder)
    except WrongOutput as error:
        return [str(error)]


def _problems(examples: Sequence[Example]) -> list[str]:
    models = list(dict.fromkeys(model for example in examples for model in example.models(KEPT / "models")))
    with tempfile.TemporaryDirectory(prefix="nightshift-example-") as directory:
        print("starting nightshift up …", flush=True)
        started_s = time.monotonic()
        folder = Path(directory).resolve()
        with running(
            folder / "data", models=models, logs=KEPT / "logs", FILE_ROOTS=str(folder / "work")
        ) as service:
            print(f"ready after {time.monotonic() - started_s:.1f} s at {service.base_url}", flush=True)
            problems = []
            for example in examples:
                print(f"--- {example.summary}", flush=True)
                wrong = checked(example, service, folder / "work" / example.name)
                problems += [f"{example.name}: {problem}" for problem in wrong]
        if service.process.returncode != 0:
            problems.append(f"nightshift up ended with {service.process.returncode}")
    return problems
