"""How many rows per second one worker processes: on the queue's path alone, and through the whole service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.reliability.databases import store_on
from benchmarks.reliability.figures import Figure
from benchmarks.reliability.services import Database, service_on
from nightshift.lifecycle import transitions
from nightshift.settings import WorkerSettings
from nightshift.store import Store
from nightshift.testing import MODEL, TTL_S, WORKER, a_segment, planned
from tests.faults.chaos import oracle
from tests.faults.chaos.workload import some_rows, submit_bulk

ROWS_PER_SHARD = 1400  # of 190 bytes, in the default 256 KiB of a shard


def measure_claims(database: Database, rows: int) -> Iterator[Figure]:
    """Claim a shard, list a segment for every 64 rows, complete it; no row is read or answered."""
    worker = WorkerSettings()
    shards = -(-rows // ROWS_PER_SHARD)
    with store_on(database) as store:
        planned(store, shards=shards)
        started_s = time.monotonic()
        with ThreadPoolExecutor(worker.shards_max) as threads:
            done = sum(
                threads.map(lambda _: _run_shards(store, worker.segment_rows), range(worker.shards_max))
            )
        took_s = time.monotonic() - started_s
    assert done == shards, "every shard is done once"
    rows_done = done * ROWS_PER_SHARD
    yield Figure(
        f"claim, list {worker.segment_rows} rows at a time, complete: {worker.shards_max} shards at once",
        rows_done / took_s,
        "rows/s",
        10_000,
        "more",
    )
    commits = done * (2 + -(-ROWS_PER_SHARD // worker.segment_rows))
    yield Figure("  commits", commits / took_s, "1/s")


def measure_rows(database: Database, rows: int) -> Iterator[Figure]:
    """The whole path: rows read and checked, prompts tokenized, answers written and stored."""
    with service_on(database) as service:
        work = some_rows(rows, step_ms=0, tokens=(1, 1))
        job = submit_bulk(service, work)
        oracle.quiesce(service, [job])
        with service.store.snapshot() as tx:
            ended = tx.jobs.fetch(job.id)
        oracle.check(service, [job])
    assert ended.started_at is not None
    assert ended.finalizing_at is not None
    took_s = (ended.finalizing_at - ended.started_at).total_seconds()
    yield Figure("rows read, run (one token each) and written: one worker", rows / took_s, "rows/s")


def _run_shards(store: Store, segment_rows: int) -> int:
    done = 0
    while True:
        with store.transaction() as tx:
            claim = tx.claims.bulk(WORKER, [MODEL], tx.now(), TTL_S)
        if claim is None:
            return done
        for seq, first in enumerate(range(0, ROWS_PER_SHARD, segment_rows)):
            rows = min(segment_rows, ROWS_PER_SHARD - first)
            with store.transaction() as tx:
                segment = a_segment(claim.lease, seq, rows=rows)
                assert transitions.commit_segment(tx, claim.lease, segment, tx.now(), rows_total=None)
        with store.transaction() as tx:
            assert tx.shards.complete(claim.lease, rows_total=ROWS_PER_SHARD)
        done += 1
