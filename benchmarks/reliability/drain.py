"""How long a worker at full load takes from SIGTERM to exit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from benchmarks.reliability.figures import Figure
from benchmarks.reliability.services import Database, service_on
from nightshift.jobs import JobKind
from nightshift.settings import WorkerSettings
from nightshift.store.shards.leases import ExpiredLease
from tests.faults.chaos.workload import Row, some_rows, submit_bulk, submit_online
from tests.faults.kit.service import Service
from tests.waiting import wait_for

STEP_MS = 20
ROWS = 4000
TOKENS = (400, 800)  # per row: 8 to 16 s in the engine, so that many rows are unfinished
ONLINE = 64  # requests that take longer than a draining worker waits
ONLINE_TOKENS = 2000
SETTLED_S = 5.0  # at full load, before the signal


@dataclass(frozen=True)
class Drained:
    bulk_s: float  # until the last bulk shard was back in the queue
    exit_s: float
    exit_code: int | None
    attempts: int  # charged to its shards, bulk and online


def measure(database: Database, rounds: int) -> Iterator[Figure]:
    with service_on(database) as service:
        jobs = [submit_bulk(service, some_rows(ROWS, step_ms=STEP_MS, tokens=TOKENS)).id]
        for number in range(ONLINE):
            row = Row(f"{number}", f"request {number} ms={STEP_MS}", max_tokens=ONLINE_TOKENS)
            jobs.append(submit_online(service, row).id)
        seen = [_drain_once(service, jobs) for _ in range(rounds)]
    worst = max(one.bulk_s for one in seen)
    yield Figure(f"SIGTERM at full load to all bulk handed back, worst of {rounds}", worst, "s", 5)
    yield Figure("SIGTERM to exit, worst", max(one.exit_s for one in seen), "s", 25)
    yield Figure("exits with a code other than 0", sum(one.exit_code != 0 for one in seen), "", 0)
    yield Figure("attempts charged for it", sum(one.attempts for one in seen), "", 0)


def _drain_once(service: Service, jobs: Sequence[str]) -> Drained:
    shards_max = WorkerSettings().shards_max
    wait_for("the worker is full", lambda: len(_held(service)) >= shards_max + ONLINE)
    time.sleep(SETTLED_S)
    took: dict[str, float] = {}

    def watch() -> None:
        wait_for("bulk is back", lambda: not any(one.kind is JobKind.BULK for one in _held(service)))
        took["bulk"] = time.monotonic() - started_s

    started_s = time.monotonic()
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    exit_code = service.stop("worker-1")
    exit_s = time.monotonic() - started_s
    watching.join()
    with service.store.snapshot() as tx:
        attempts = sum(shard.attempts for job in jobs for shard in tx.shards.of_job(job, limit=100))
    service.start("worker-1")
    return Drained(took["bulk"], exit_s, exit_code, attempts)


def _held(service: Service) -> Sequence[ExpiredLease]:
    """All leases that are held."""
    with service.store.snapshot() as tx:
        return tx.leases.expired(tx.now() + timedelta(days=1), limit=1000)
