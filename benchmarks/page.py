"""How long the page's queries take with many jobs, how soon an open page is up to date, and what reconnects
leave behind.

    python -m benchmarks.page                       # SQLite and PostgreSQL, 100,000 jobs of one tenant
    python -m benchmarks.page --jobs 1000 --reconnects 100
"""

import argparse
import asyncio
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import insert, text

from api.authentication import Caller
from api.page import views
from api.page.updates import Updates
from api.page.view import Asked, View
from nightshift.fleet.figures import INTERVAL_S, ServiceFigures
from nightshift.jobs import Face, JobKind, JobSpec, JobState
from nightshift.jobs.priorities import PriorityClass
from nightshift.settings import ApiSettings
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from nightshift.tenants.keys import Scope
from nightshift.tenants.quotas import NO_QUOTAS

TENANT: Final = "default"
MODELS: Final = ("llama", "minilm", "classifier")
REPEATS: Final = 30
INSERTED: Final = 5000  # at a time
EVENTS: Final = 20_000  # of the job that is looked at: a checkpoint each
SHARDS: Final = 5000  # of it
OPEN_JOBS: Final = 5000  # queued or running, the newest
"""More than the 2,000 that a tenant may have by default."""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--jobs", type=int, default=100_000)
    asked.add_argument("--reconnects", type=int, default=10_000)
    options = asked.parse_args()
    for dialect in ("sqlite", "postgresql"):
        with database(dialect) as found:
            store = Store(found)
            job_id = fill(store, options.jobs)
            for row in view_times(store, job_id):
                print(json.dumps({"database": dialect, "jobs": options.jobs, **row}))
            print(json.dumps({"database": dialect, **asyncio.run(reconnects(store, options.reconnects))}))


@contextmanager
def database(dialect: str) -> Iterator[Database]:
    with tempfile.TemporaryDirectory(prefix="ns-page-") as folder:
        if dialect == "sqlite":
            found = Database(f"sqlite:///{Path(folder) / 'nightshift.db'}")
            upgrade(found)
            yield found
            found.close()
            return
        from tests.integration.servers import postgresql

        with postgresql(Path(folder)) as server:
            found = Database(server.url(), timeout_s=600)
            upgrade(found)
            yield found
            found.close()


def fill(store: Store, jobs: int) -> str:
    """Returns the id of a running job with many shards and checkpoints."""
    chosen = random.Random(1)
    now = store.now()
    rows = [_job(chosen, place, jobs, now) for place in range(jobs)]
    looked_at = next(
        row for row in reversed(rows) if row["state"] == JobState.RUNNING and row["kind"] == "bulk"
    )
    looked_at["event_seq"] = EVENTS
    with store.database.write() as connection:
        for begin in range(0, jobs, INSERTED):
            connection.execute(insert(tables.job), rows[begin : begin + INSERTED])
        connection.execute(insert(tables.event), [_event(looked_at, seq) for seq in range(1, EVENTS + 1)])
        connection.execute(insert(tables.shard), [_shard(looked_at, number) for number in range(SHARDS)])
    with store.transaction() as tx:
        for place in range(11_520):
            tx.figures.record(
                ServiceFigures(at=now - timedelta(seconds=INTERVAL_S * place), generation_tokens_per_s=100.0)
            )
    if not store.database.is_sqlite:
        with store.database.write() as connection:
            connection.execute(text("ANALYZE"))
    job_id: str = looked_at["id"]
    return job_id


def view_times(store: Store, job_id: str) -> Iterator[dict[str, Any]]:
    """The reads of each view in one snapshot, in milliseconds; and those of the list with each filter."""
    by_path = {view.path: view for view in views.VIEWS}
    jobs = by_path["/ui/jobs"]
    for view in views.VIEWS:
        if "{" not in view.path:
            yield _timed(store, view, {}, {})
    yield _timed(store, by_path["/ui/jobs/{job_id}"], {"job_id": job_id}, {})
    with store.snapshot() as tx:
        deep = tx.jobs.list(TENANT, limit=1, after=None)[0].id
    for query in (
        {"after": deep},
        *({"state": state.value} for state in (JobState.FAILED, JobState.EXPIRED, JobState.QUEUED)),
        {"kind": "online"},
        {"priority": "interactive"},
        {"model": MODELS[0]},
        {"name": "nightly"},
        {"name": "never-used"},
        {"state": "failed", "model": MODELS[1], "priority": "background"},
    ):
        yield _timed(store, jobs, {}, query)
    yield _timed_data(store, by_path["/"])


def _timed(store: Store, view: View, path: dict[str, str], query: dict[str, str]) -> dict[str, Any]:
    asked = _asked(path, query)

    def read() -> None:
        with store.snapshot() as tx:
            view.load(tx, asked, tx.now())

    return {"view": view.path, "query": query, **_milliseconds(read)}


def _timed_data(store: Store, view: View) -> dict[str, Any]:
    (path, load), *_ = view.data.items()
    asked = _asked({}, {"hours": "48"})

    def read() -> None:
        with store.snapshot() as tx:
            load(tx, asked, tx.now())

    return {"view": path, "query": dict(asked.query), **_milliseconds(read)}


def _milliseconds(read: Callable[[], None]) -> dict[str, float]:
    read()
    times = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        read()
        times.append(1000 * (time.perf_counter() - began_s))
    return {"median_ms": round(statistics.median(times), 1), "longest_ms": round(max(times), 1)}


# What views ask of their services while they load.
_SERVICES: Final = SimpleNamespace(settings=SimpleNamespace(api=ApiSettings()))


def _asked(path: dict[str, str], query: dict[str, str]) -> Asked:
    caller = Caller("key", TENANT, frozenset(Scope), PriorityClass.INTERACTIVE, NO_QUOTAS)
    return Asked(caller=caller, services=_SERVICES, path=path, query=query)  # type: ignore[arg-type]


async def reconnects(store: Store, count: int) -> dict[str, Any]:
    """Open and leave the stream of an open page again and again; resident memory after a tenth, and after
    all.
    """
    updates = Updates(store)
    after: list[int] = []
    for number in range(1, count + 1):
        following = updates.follow("session")
        await anext(following)
        await following.aclose()
        if number in (count // 10, count):
            gc.collect()
            after.append(_resident_bytes())
    return {
        "reconnects": count,
        "mib_after_a_tenth": round(after[0] / 2**20, 1),
        "mib_after_all": round(after[-1] / 2**20, 1),
        "open_pages_left": updates.open_pages,
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _job(chosen: random.Random, place: int, of: int, now: Any) -> dict[str, Any]:
    is_open = of - place <= min(OPEN_JOBS, of // 2)
    ended = chosen.choices(("succeeded", "failed", "cancelled", "expired"), (90, 6, 2, 2))[0]
    state = chosen.choice(("queued", "running")) if is_open else ended
    kind = chosen.choice(("online", "bulk"))
    created = now - timedelta(seconds=of - place)
    priority = chosen.choice(list(PriorityClass))
    return {
        "id": f"job_{place:024d}",
        "tenant_id": TENANT,
        "kind": kind,
        "face": Face.NATIVE,
        "state": state,
        "priority": priority,
        "priority_rank": priority.rank,
        "model": chosen.choice(MODELS),
        "spec": JobSpec(endpoint="/v1/chat/completions", completion_window_s=86_400).to_json(),
        "fingerprint": str(place),
        "rows_total": 1000,
        "rows_succeeded": 0 if state == "queued" else 900,
        "rows_failed": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cached_tokens": 0,
        "created_at": created,
        "deadline_at": created + timedelta(days=1),
        "planned_at": None if state == "queued" else created,
        "started_at": None if state == "queued" else created,
        "finished_at": None if is_open else created,
        "name": "nightly" if place % 100 == 0 else None,
        "event_seq": 1,
    }


def _event(job: dict[str, Any], seq: int) -> dict[str, Any]:
    counts = {"total": 1000, "succeeded": 900 * seq // EVENTS, "failed": 0}
    return {
        "job_id": job["id"],
        "seq": seq,
        "type": "job.progress",
        "data": {"counts": counts},
        "created_at": job["created_at"] + timedelta(milliseconds=seq),
    }


def _shard(job: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "id": f"shard_{number}",
        "job_id": job["id"],
        "tenant_id": TENANT,
        "kind": JobKind.BULK,
        "model": job["model"],
        "shard_no": number,
        "state": "done" if number % 2 else "queued",
        "enqueued_at": job["created_at"],
        "uri": "file:///x",
        "format": "jsonl",
        "start": 0,
    }


if __name__ == "__main__":
    main()
