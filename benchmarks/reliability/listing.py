"""Pages of `GET /v1/jobs` over HTTP, a delete, and what has had its time, beside a million jobs.

The API is the real one, under uvicorn, in a thread of this process. So the CPU time of a call is that of the
process, client included; on a machine that is not idle it says more than the time that passed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from api.app import create_app
from api.services import AppSettings
from benchmarks.reliability.databases import store_on
from benchmarks.reliability.figures import Figure, quantile
from benchmarks.reliability.growth import vacuum
from benchmarks.reliability.services import Database
from nightshift.objectstore import DirectoryStore
from nightshift.settings import DataSettings
from nightshift.store import Store
from nightshift.tenants.keys import DEFAULT_TENANT
from nightshift.testing import InMemoryStreams
from scheduler.duties.ageing import Ageing
from scheduler.duties.deletion import Deleting
from tests.integration.api.conftest import insert_key
from tests.integration.api.serving import serving
from tests.integration.servers import ValkeyServer

GOAL_MS = 50.0
CALLS = 60  # of each kind
WARM_UP = 5
AGED_SHARE = 0.05  # of the jobs: these have had their time
QUEUED = 1000  # bulk jobs of each of so many tenants
TENANTS = 20

PAGES: dict[str, dict[str, Any]] = {
    "the first page": {},
    "100 jobs": {"limit": 100},
    "succeeded ones": {"status": "succeeded", "limit": 100},
    "failed bulk jobs": {"status": "failed", "kind": "bulk"},
    "bulk jobs": {"kind": "bulk", "limit": 100},
    "of one class": {"priority": "interactive", "limit": 100},
    "of one model": {"model": "model-3", "limit": 100},
    "queued ones": {"status": "queued", "limit": 100},
}

_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :jobs) ",
    "postgresql": "WITH n(i) AS (SELECT generate_series(1, CAST(:jobs AS integer))) ",
}
_RANDOM = {"sqlite": "lower(hex(randomblob(12)))", "postgresql": "substr(md5(random()::text), 1, 24)"}
_SPEC = '{"endpoint": "/v1/chat/completions", "completion_window_s": 600, "metadata": {"team": "search"}}'

_ENDED = """
INSERT INTO job (id, tenant_id, kind, face, state, priority, priority_rank, model, spec, fingerprint,
    rows_total, rows_succeeded, rows_failed, prompt_tokens, completion_tokens, cached_tokens,
    created_at, deadline_at, started_at, finished_at, event_seq)
{numbers}
SELECT 'job_' || {random}, 'default', CASE WHEN i % 49 = 0 THEN 'bulk' ELSE 'online' END, 'native',
    CASE WHEN i % 10 = 0 THEN 'failed' WHEN i % 10 = 1 THEN 'cancelled' ELSE 'succeeded' END,
    CASE WHEN i % 3 = 0 THEN 'standard' ELSE 'interactive' END, CASE WHEN i % 3 = 0 THEN 1 ELSE 0 END,
    'model-' || (i % 7), '{spec}', 'fingerprint-' || i, 1, 1, 0, 10, 20, 0,
    :first + i * :step, :first + i * :step + 600000, :first + i * :step, :first + i * :step + 500, 3
FROM n
"""
_QUEUED = """
INSERT INTO job (id, tenant_id, kind, face, state, priority, priority_rank, model, spec, fingerprint,
    rows_succeeded, rows_failed, prompt_tokens, completion_tokens, cached_tokens, created_at, deadline_at,
    event_seq)
{numbers}
SELECT 'job_' || {random}, CASE WHEN i % {tenants} = 0 THEN 'default' ELSE 'tenant-' || (i % {tenants}) END,
    'bulk', 'native', 'queued', 'standard', 1, 'model-3', '{spec}', 'queued-' || i, 0, 0, 0, 0, 0,
    :first + i, :first + 86400000, 1
FROM n
"""
_AGED = "FROM job WHERE finished_at <= :until AND kind = 'online'"
_OF_AGED = (
    "INSERT INTO shard (id, job_id, tenant_id, kind, model, shard_no, state, term, attempts, crash_count,"
    " enqueued_at, rows_done, uri, format, start)"
    " SELECT 'shard_' || substr(id, 5), id, tenant_id, kind, model,"
    f" 0, 'done', 1, 0, 0, created_at, 1, '', 'request', 0 {_AGED}",
    f"INSERT INTO request (shard_id, body) SELECT 'shard_' || substr(id, 5), :body {_AGED}",
    "INSERT INTO result (shard_id, status_code, body, prompt_tokens, completion_tokens, cached_tokens)"
    f" SELECT 'shard_' || substr(id, 5), 200, :body, 10, 20, 0 {_AGED}",
    *(
        "INSERT INTO event (job_id, seq, type, data, created_at)"
        f" SELECT id, {seq}, 'job.queued', '{{}}', created_at {_AGED}"
        for seq in (1, 2, 3)
    ),
)


@dataclass(frozen=True)
class Cost:
    passed_ms: float
    cpu_ms: float


def measure(database: Database, jobs: int) -> Iterator[Figure]:
    with store_on(database) as store, tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
        _fill(store, jobs)
        with api_on(store, Path(folder)) as http:
            yield from _pages(http)
            yield from _deletes(http)
        yield from _ageing(store, Path(folder))


def _fill(store: Store, jobs: int) -> None:
    """Jobs of a day, the oldest of them older than that, and a queue that is full."""
    dialect = store.database.dialect
    words = {"numbers": _NUMBERS[dialect], "random": _RANDOM[dialect], "spec": _SPEC.replace(":", "\\:")}
    now_ms = round(store.now().timestamp() * 1000)
    step_ms = max(1, round(86_400_000 / ((1 - AGED_SHARE) * jobs)))
    first_ms = now_ms - 60_000 - jobs * step_ms
    until_ms = first_ms + round(AGED_SHARE * jobs) * step_ms
    body = '{"messages": [{"role": "user", "content": "' + "x" * 2000 + '"}]}'
    with store.database.write_at_leisure() as connection:
        times = {"jobs": jobs, "first": first_ms, "step": step_ms}
        connection.execute(text(_ENDED.format(**words)), times)
        queued = {"jobs": QUEUED * TENANTS, "first": now_ms - 50_000}
        connection.execute(text(_QUEUED.format(**words, tenants=TENANTS)), queued)
        for statement in _OF_AGED:
            given = {"until": until_ms, "body": body}
            wanted = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(text(statement), wanted)
    if dialect == "postgresql":  # as autovacuum does
        vacuum(store)


@contextmanager
def api_on(store: Store, folder: Path) -> Iterator[httpx.Client]:
    url = store.database._engine.url.render_as_string(hide_password=False)
    data = DataSettings(data_dir=folder / "data", database_url=url)
    valkey = ValkeyServer(folder)
    valkey.start()
    try:
        headers = {"authorization": f"Bearer {insert_key(store, DEFAULT_TENANT)}"}
        with serving(create_app(AppSettings(data, valkey.settings))) as base_url:
            with httpx.Client(base_url=base_url, headers=headers, timeout=60, trust_env=False) as http:
                yield http
    finally:
        valkey.client.close()
        valkey.kill()


def _pages(http: httpx.Client) -> Iterator[Figure]:
    every: list[Cost] = []
    for name, params in PAGES.items():
        found = _timed(http, params)
        every += found
        yield from _figures(f"GET /v1/jobs, {name}", found)
    deep = http.get("/v1/jobs", params={"limit": 100, "kind": "bulk", "status": "succeeded"}).json()[
        "last_id"
    ]
    found = _timed(http, {"limit": 100, "after": deep})
    yield from _figures("GET /v1/jobs, a later page", found)
    yield Figure("GET /v1/jobs, all of these, p95", quantile([one.passed_ms for one in every + found], 0.95),
                 "ms", GOAL_MS)  # fmt: skip


def _timed(http: httpx.Client, params: dict[str, Any]) -> list[Cost]:
    costs = [cost_of(lambda: http.get("/v1/jobs", params=params)) for _ in range(WARM_UP + CALLS)]
    return costs[WARM_UP:]


def cost_of(call: Any) -> Cost:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    call().raise_for_status()
    return Cost(1000 * (time.perf_counter() - began_s), 1000 * (time.process_time() - cpu_s))


def _figures(what: str, costs: list[Cost]) -> Iterator[Figure]:
    yield Figure(f"{what}: p95", quantile([one.passed_ms for one in costs], 0.95), "ms", GOAL_MS)
    yield Figure("  … CPU time, p95", quantile([one.cpu_ms for one in costs], 0.95), "ms")


def _deletes(http: httpx.Client) -> Iterator[Figure]:
    page = http.get("/v1/jobs", params={"status": "failed", "limit": CALLS}).json()["data"]
    costs = [cost_of(lambda job=job: http.delete(f"/v1/jobs/{job['id']}")) for job in page]
    yield from _figures("DELETE /v1/jobs/{id}", costs)


def _ageing(store: Store, folder: Path) -> Iterator[Figure]:
    """The whole round of what has had its time, and of what was deleted above."""
    held_s: list[float] = []
    now = store.now() + timedelta(seconds=1)
    for name, duty in (
        ("what has had its time", Ageing(store, InMemoryStreams(), pause=held_s.append)),
        (
            "deleted jobs",
            Deleting(store, DirectoryStore(folder / "objects"), InMemoryStreams(), pause=held_s.append),
        ),
    ):
        held_s.clear()
        began_s, cpu_s, jobs, has_more = time.perf_counter(), time.process_time(), 0, True
        while has_more:
            done = duty.run_once(now)
            has_more, jobs = done.has_more, jobs + done.counts.get("online_jobs", done.counts.get("jobs", 0))
        passed_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        yield Figure(f"{name}: jobs", jobs, "")
        yield Figure("  … a job", 1000 * passed_s / max(1, jobs), "ms")
        yield Figure("  … CPU time of a job", 1000 * cpu_s / max(1, jobs), "ms")
        yield Figure("  … longest step", 1000 * max(held_s, default=0), "ms")
