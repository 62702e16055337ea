"""The figures of docs/reliability.md, each by a command of its own.

python -m benchmarks.reliability admission --database postgresql
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.reliability import (
    admission,
    drain,
    enqueueing,
    growth,
    idle,
    ingest,
    listing,
    planning,
    recovery,
    scraping,
    throughput,
    webhooks,
)
from benchmarks.reliability.figures import Figure, show

Measure = Callable[[argparse.Namespace], Iterator[Figure]]

COMMANDS: dict[str, tuple[str, Measure]] = {
    "admission": (
        "submit to engine admission, idle",
        lambda chosen: admission.measure(chosen.database, chosen.count or 300),
    ),
    "enqueueing": (
        "requests accepted per second, beside FastAPI and Celery alone",
        lambda chosen: enqueueing.measure(chosen.database, chosen.count or 1000),
    ),
    "kills": (
        "SIGKILL of a worker, seen by its supervisor",
        lambda chosen: recovery.measure_kills(chosen.database, chosen.count or 5),
    ),
    "machines": (
        "SIGKILL of a worker and its supervisor: half a minute each",
        lambda chosen: recovery.measure_machines(chosen.database, chosen.count or 2),
    ),
    "claims": (
        "claim, list and complete, without the rows themselves",
        lambda chosen: throughput.measure_claims(chosen.database, chosen.count or 200_000),
    ),
    "rows": (
        "rows from input to output through the whole service",
        lambda chosen: throughput.measure_rows(chosen.database, chosen.count or 20_000),
    ),
    "ingest": (
        "input to rows that may run",
        lambda chosen: ingest.measure(chosen.database, chosen.count or 200_000),
    ),
    "planning": (
        "an input of very many objects, from its listing to shards",
        lambda chosen: planning.measure(chosen.database, chosen.count or 20_000),
    ),
    "images": (
        "a prefix of very many images, from its listing to shards",
        lambda chosen: planning.measure_images(chosen.database, chosen.count or 1_000_000),
    ),
    "drain": (
        "SIGTERM at full load",
        lambda chosen: drain.measure(chosen.database, chosen.count or 2),
    ),
    "idle": (
        "CPU time of a scheduler without work",
        lambda chosen: idle.measure(chosen.database, chosen.count or 120),
    ),
    "webhooks": (
        "events to healthy endpoints of 20 tenants that each have a hanging one",
        lambda chosen: webhooks.measure(chosen.database, chosen.count or 10),
    ),
    "growth": (
        "bytes after 24 hours of chat and batches, under a clock that is set",
        lambda chosen: growth.measure(chosen.database, chosen.count or 1000),
    ),
    "listing": (
        "pages of GET /v1/jobs, and deleting, beside a million jobs",
        lambda chosen: listing.measure(chosen.database, chosen.count or 1_000_000),
    ),
    "scraping": (
        "GET /metrics while 100,000 shards are queued",
        lambda chosen: scraping.measure(chosen.database, chosen.count or 100_000),
    ),
    "flush": (
        "FLUSHALL before the rings are fetched",
        lambda chosen: recovery.measure_flush(chosen.database, chosen.count or 3),
    ),
}


def main(arguments: Sequence[str]) -> int:
    chosen = _parser().parse_args(arguments)
    name = f"{chosen.command}-{chosen.database}"
    show(name, list(COMMANDS[chosen.command][1](chosen)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    commands: Any = parser.add_subparsers(dest="command", required=True)
    for name, (about, _) in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        command.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
        command.add_argument("--count", type=int, help="how many requests, rows, deaths or seconds")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
