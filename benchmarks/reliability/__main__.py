"""The figures of docs/reliability.md, each by a command of its own.

python -m benchmarks.reliability admission --database postgresql
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

from benchmarks.reliability import admission, enqueueing, idle, recovery
from benchmarks.reliability.services import Database
from benchmarks.report import Figure, report_figures

COMMANDS: dict[str, tuple[str, Callable[[Database, int], Iterator[Figure]], int]] = {
    "admission": ("submit to engine admission, idle", admission.measure, 300),
    "enqueueing": ("requests accepted, beside FastAPI and Celery alone", enqueueing.measure, 1000),
    "kills": ("SIGKILL of a worker, seen by its supervisor", recovery.measure_kills, 5),
    "machines": ("SIGKILL of a worker and its supervisor: half a minute each", recovery.measure_machines, 2),
    "flush": ("FLUSHALL before the rings are fetched", recovery.measure_flush, 3),
    "idle": ("CPU time of a scheduler without work", idle.measure, 120),
}
"""Each with its help, its function and its default count."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (about, _, default) in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        command.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
        command.add_argument(
            "--count", type=int, default=default, help="how many requests, rows, deaths or seconds"
        )
    chosen = parser.parse_args(arguments)
    _, measure, _ = COMMANDS[chosen.command]
    report_figures(
        f"reliability-{chosen.command}-{chosen.database}", [*measure(chosen.database, chosen.count)]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
