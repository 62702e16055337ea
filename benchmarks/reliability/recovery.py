"""How soon work continues after a worker is killed, and how much of it is done again.

Two workers, a job of two shards. One worker has both shards and is killed, again and again; the other claims
them. Time runs from the signal.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.reliability.services import Database, admissions, service_on, wait_for_admissions
from benchmarks.report import Figure, quantile
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import Shard
from tests.faults.chaos.workload import BulkJob, Row, some_rows, submit_bulk, submit_online
from tests.faults.kit.service import Service, Stamp
from tests.helpers.waiting import wait_for

SEED = 1
ROWS = 12_000
STEP_MS = 20
TOKENS = (20, 80)  # per row: 0.4 to 1.6 s in the engine
LINE_BYTES = 190  # approximate; shards are cut by bytes
WAIT_S = (0.5, 2.5)  # from a worker's first segment to its kill: anywhere between two checkpoints
RINGS_LOST = 20


@dataclass(frozen=True)
class Recovered:
    killed_ns: int
    claimed_s: float  # until another worker had claimed the last of its shards
    committed_s: float  # until another worker had listed a segment of one of them


def measure_kills(database: Database, deaths: int) -> Iterator[Figure]:
    yield from _deaths(database, deaths, "worker", 2.0, "its supervisor sees it")


def measure_machines(database: Database, deaths: int) -> Iterator[Figure]:
    yield from _deaths(database, deaths, "machine", 35.0, "supervisor gone too: by lease")


def measure_flush(database: Database, rounds: int) -> Iterator[Figure]:
    """FLUSHALL while messages wait unfetched in Redis."""
    took = []
    with service_on(database) as service:
        for number in range(rounds):
            service.pause("worker-1")
            for request in range(RINGS_LOST):
                submit_online(service, Row(f"{number}-{request}", f"request {request}", max_tokens=1))
            service.redis.client.flushall()
            start_ns = time.monotonic_ns()
            service.resume("worker-1")
            wait_for_admissions(service, (number + 1) * RINGS_LOST)
            took.append((admissions(service)[-1].at_ns - start_ns) / 1e9)
    yield Figure(f"FLUSHALL to the last of {RINGS_LOST} admitted, worst of {rounds}", max(took), "s", 15.0)
    yield Figure("FLUSHALL to the last admitted, p50", quantile(took, 0.5), "s")


def _deaths(database: Database, deaths: int, kind: str, goal_s: float, how: str) -> Iterator[Figure]:
    draw = random.Random(SEED)
    with service_on(database, workers=2, SHARD_BYTES=str(ROWS * LINE_BYTES // 2)) as service:
        service.pause("worker-2")  # else each might claim one of the two shards
        job = submit_bulk(service, some_rows(ROWS, step_ms=STEP_MS, tokens=TOKENS))
        wait_for("the other has both shards", lambda: _holder(service, job) is not None)
        service.resume("worker-2")
        seen = [_kill_the_holder(service, job, kind, draw.uniform(*WAIT_S)) for _ in range(deaths)]
        again = _admitted_twice(admissions(service), [one.killed_ns for one in seen])
        with service.store.snapshot() as tx:
            tokens_redone = tx.jobs.fetch(job.id).tokens_redone
    claimed, committed = [one.claimed_s for one in seen], [one.committed_s for one in seen]
    yield Figure(f"SIGKILL to re-claimed ({how}), worst of {deaths}", max(claimed), "s", goal_s)
    yield Figure("SIGKILL to re-claimed, p50", quantile(claimed, 0.5), "s")
    yield Figure("SIGKILL to another's first segment, worst", max(committed), "s")
    yield Figure("SIGKILL to another's first segment, p50", quantile(committed, 0.5), "s")
    rows = [len(stamps) for stamps in again]
    kept = [sum(stamp.tokens for stamp in stamps) for stamps in again]
    yield Figure("rows begun again per kill, mean", sum(rows) / deaths, "rows")
    yield Figure("rows begun again per kill, worst", max(rows), "rows")
    yield Figure("tokens they had from a checkpoint per kill, mean", sum(kept) / deaths, "tokens")
    yield Figure("tokens generated again per kill, as the service counts", tokens_redone / deaths, "tokens")


def _kill_the_holder(service: Service, job: BulkJob, kind: str, wait_s: float) -> Recovered:
    wait_for("both workers are there", lambda: service.workers_ready() >= 2)
    wait_for("one of them has both shards", lambda: _holder(service, job) is not None)
    time.sleep(wait_s)
    holder = _holder(service, job)
    assert holder is not None, "the other worker has claimed a shard"
    terms = {shard.id: shard.term for shard in _shards(service, job)}
    killed_ns = time.monotonic_ns()
    service.kill(f"{kind}-{holder}")

    def is_claimed() -> bool:
        return all(shard.term > terms[shard.id] for shard in _shards(service, job))

    def is_committed() -> bool:
        with service.store.snapshot() as tx:
            return any(one.term > term for id, term in terms.items() for one in tx.shards.segments(id)[-1:])

    wait_for("the other worker has claimed its shards", is_claimed)
    claimed_ns = time.monotonic_ns()
    wait_for("the other worker has listed a segment", is_committed)
    committed_ns = time.monotonic_ns()
    return Recovered(killed_ns, (claimed_ns - killed_ns) / 1e9, (committed_ns - killed_ns) / 1e9)


def _shards(service: Service, job: BulkJob) -> Sequence[Shard]:
    with service.store.snapshot() as tx:
        return tx.shards.of_job(job.id, limit=10)


def _holder(service: Service, job: BulkJob) -> int | None:
    """The number of the worker that has both shards and has listed something of them."""
    with service.store.snapshot() as tx:
        shards = tx.shards.of_job(job.id, limit=10)
        ids = {worker.pid: worker.id for worker in tx.workers.list(state=WorkerState.READY)}
        for number in (1, 2):
            pids = [pid for pid in service.pids(f"worker-{number}") if pid in ids]
            held = {one.shard_id for pid in pids for one in tx.leases.of_worker(ids[pid], limit=10)}
            listed = [one.term for shard in shards for one in tx.shards.segments(shard.id)[-1:]]
            if held and held == {shard.id for shard in shards} and max(listed, default=0) >= shards[0].term:
                return number
    return None


def _admitted_twice(given: Sequence[Stamp], kills_ns: Sequence[int]) -> list[list[Stamp]]:
    """The rows, for each kill, that an engine got before it and again after it."""
    again: list[list[Stamp]] = [[] for _ in kills_ns]
    before: set[str] = set()
    for stamp in given:
        if stamp.row in before:
            again[bisect_left(kills_ns, stamp.at_ns) - 1].append(stamp)
        before.add(stamp.row)
    return again
