"""`GET /metrics` over HTTP while very much is queued.

The API is the real one, under uvicorn, in a thread of this process, as in `listing.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from benchmarks.reliability.databases import store_on
from benchmarks.reliability.figures import Figure, quantile
from benchmarks.reliability.growth import vacuum
from benchmarks.reliability.listing import api_on, cost_of
from benchmarks.reliability.services import Database
from nightshift.fleet.figures import ServiceFigures
from nightshift.store import Store

GOAL_MS = 50.0
CALLS = 60
WARM_UP = 5
MODELS = 4


@dataclass(frozen=True)
class Backlog:
    what: str
    jobs: int
    online: int = 0  # requests beside them


BACKLOGS = (
    Backlog("20 jobs", 20),
    Backlog("1,000 jobs, as many as a tenant may have", 1000),
    Backlog("20 jobs and 10,000 online requests, as many as may wait", 20, online=10_000),
)

_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) ",
    "postgresql": "WITH n(i) AS (SELECT generate_series(1, CAST(:count AS integer))) ",
}
_JOBS = """
INSERT INTO job (id, tenant_id, kind, face, state, priority, priority_rank, model, spec, fingerprint,
    rows_total, rows_succeeded, rows_failed, prompt_tokens, completion_tokens, cached_tokens, created_at,
    deadline_at, planned_at, event_seq)
{numbers}
SELECT :kind || i, 'default', :kind, 'native', :state,
    CASE WHEN i % 3 = 0 THEN 'background' ELSE 'standard' END, CASE WHEN i % 3 = 0 THEN 2 ELSE 1 END,
    'model-' || (i % {models}), '{{}}', 'fingerprint-' || i, :rows, 0, 0, 0, 0, 0, :now, :now + 28800000,
    :now, 1
FROM n
"""
_SHARDS = """
INSERT INTO shard (id, job_id, tenant_id, kind, model, shard_no, state, term, attempts, crash_count,
    enqueued_at, rows_done, uri, format, start)
{numbers}
SELECT :kind || '_' || i, :kind || (1 + i % :jobs), 'default', :kind,
    'model-' || ((1 + i % :jobs) % {models}),
    i / :jobs, 'queued', 0, 0, 0, :now, 0, 's3://bucket/in.jsonl', 'jsonl', i
FROM n
"""


def measure(database: Database, shards: int) -> Iterator[Figure]:
    for backlog in BACKLOGS:
        with store_on(database) as store, tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
            _fill(store, shards, backlog)
            with api_on(store, Path(folder)) as http:
                made = [cost_of(lambda: http.get("/metrics")) for _ in range(WARM_UP + CALLS)]
                page = http.get("/metrics").text
            costs = made[WARM_UP:]
            assert f'nightshift_shards_queued{{kind="bulk"}} {float(shards)}' in page, "not all was filled in"
            what = f"GET /metrics, {shards:,} shards of {backlog.what}: p95"
            yield Figure(what, quantile([one.passed_ms for one in costs], 0.95), "ms", GOAL_MS)
            yield Figure("  … median", quantile([one.passed_ms for one in costs], 0.5), "ms")
            yield Figure("  … CPU time, p95", quantile([one.cpu_ms for one in costs], 0.95), "ms")


def _fill(store: Store, shards: int, backlog: Backlog) -> None:
    words = {"numbers": _NUMBERS[store.database.dialect], "models": MODELS}
    now = store.now()
    with store.database.write_at_leisure() as connection:
        for kind, state, jobs, count in (
            ("bulk", "running", backlog.jobs, shards),
            ("online", "queued", backlog.online, backlog.online),
        ):
            if count:
                given = {"kind": kind, "now": round(now.timestamp() * 1000)}
                of_jobs = given | {"state": state, "count": jobs, "rows": 100 * count // jobs}
                connection.execute(text(_JOBS.format(**words)), of_jobs)
                connection.execute(text(_SHARDS.format(**words)), given | {"count": count, "jobs": jobs})
    with store.transaction() as tx:
        paces = {f"model-{n}": 10.0 for n in range(MODELS)}
        tx.figures.record(ServiceFigures(at=now, rows_per_busy_s=paces))
    if store.database.dialect == "postgresql":  # as autovacuum does
        vacuum(store)
