"""A database with very much that the page may show, all of one tenant."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Table, insert, text

from nightshift.fleet.figures import INTERVAL_S, ServiceFigures
from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.jobs import Face, JobKind, JobSpec, JobState
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.tenants import Administration
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from nightshift.tenants.audit import Actor
from nightshift.tenants.usage import first_day, usage_day

TENANT: Final = "default"
BULK_MODEL: Final = "translator"  # of no online job
MODELS: Final = ("llama", "minilm", "classifier", BULK_MODEL)
CLASSES: Final = tuple(PriorityClass)  # the last of no online job
INSERTED: Final = 5000  # at a time
EVENTS: Final = 20_000  # of the job that is looked at: a checkpoint each
SHARDS: Final = 5000  # of it
OPEN_JOBS: Final = 5000  # queued or running, the newest
"""More than the 2,000 that a tenant may have by default."""
USAGE_DAYS: Final = 30
PRESENT_WORKERS: Final = 100  # of all; the others have ended
ENDPOINTS: Final = 20  # as many as a tenant may have
FIGURES: Final = 11_520  # of the service: two days


@dataclass(frozen=True)
class Filled:
    """Ids: of a running job with many shards and checkpoints, and of the row in the middle of each list."""

    job: str
    letter: str
    delivery: str
    endpoint: str
    key: str
    worker: str
    usage: str
    """A day and a model."""
    usage_last: str
    """Of the oldest day."""


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


def fill(store: Store, jobs: int, rows: int) -> Filled:
    """`rows`: of each list beside the jobs."""
    chosen, now = random.Random(1), store.now()
    with store.transaction() as tx:
        Administration(tx, Actor("benchmark")).create_tenant(TENANT)
    job_rows = [_job(chosen, place, jobs, now) for place in range(jobs)]
    looked_at = next(
        row for row in reversed(job_rows) if row["state"] == JobState.RUNNING and row["kind"] == "bulk"
    )
    looked_at["event_seq"] = EVENTS
    _insert(store, tables.job, jobs, lambda place: job_rows[place])
    _insert(store, tables.event, EVENTS, lambda place: _event(looked_at, place + 1))
    of_others = [row for row in job_rows if row["kind"] == "bulk" and row is not looked_at]
    _insert(store, tables.shard, SHARDS, lambda place: _shard(looked_at, place))
    _insert(
        store, tables.shard, rows, lambda place: _shard(of_others[place % len(of_others)], SHARDS + place)
    )
    _insert(store, tables.dead_row, rows, lambda place: _letter(looked_at, place, now))
    _insert(store, tables.webhook_endpoint, ENDPOINTS, lambda place: _endpoint(place, now))
    _insert(store, tables.delivery, rows, lambda place: _delivery(chosen, job_rows, place, now))
    _insert(store, tables.usage, rows, lambda place: _usage(place, now))
    _insert(store, tables.api_key, rows, lambda place: _key(place, now))
    _insert(store, tables.worker, rows, lambda place: _worker(place, now))
    _record_figures(store, now)
    if not store.database.is_sqlite:
        with store.database.write() as connection:
            connection.execute(text("ANALYZE"))
    middle = rows // 2
    return Filled(
        looked_at["id"],
        f"dlq_{middle}",
        f"dlv_{middle}",
        "whe_0",
        f"key{middle:09d}",
        f"worker_{middle}",
        f"{_usage(middle, now)['day']}/{_usage(middle, now)['model']}",
        f"{_usage(0, now)['day']}/{_usage(0, now)['model']}",
    )


def _insert(store: Store, table: Table, count: int, row: Callable[[int], Mapping[str, Any]]) -> None:
    for begin in range(0, count, INSERTED):
        with store.database.write() as connection:
            rows = [row(place) for place in range(begin, min(count, begin + INSERTED))]
            connection.execute(insert(table), rows)


def _record_figures(store: Store, now: datetime) -> None:
    with store.transaction() as tx:
        for place in range(FIGURES):
            at = now - timedelta(seconds=INTERVAL_S * place)
            tx.figures.record(ServiceFigures(at=at, generation_tokens_per_s=100.0))


def _job(chosen: random.Random, place: int, of: int, now: datetime) -> dict[str, Any]:
    is_open = of - place <= min(OPEN_JOBS, of // 2)
    ended = chosen.choices(("succeeded", "failed", "cancelled", "expired"), (90, 6, 2, 2))[0]
    state = chosen.choice(("queued", "running")) if is_open else ended
    kind = chosen.choice(("online", "bulk"))
    created = now - timedelta(seconds=of - place)
    priority = chosen.choice(CLASSES if kind == "bulk" else CLASSES[:-1])
    return {
        "id": f"job_{place:024d}",
        "tenant_id": TENANT,
        "kind": kind,
        "face": Face.NATIVE,
        "state": state,
        "priority": priority,
        "priority_rank": priority.rank,
        "model": chosen.choice(MODELS if kind == "bulk" else MODELS[:-1]),
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


def _letter(job: dict[str, Any], place: int, now: datetime) -> dict[str, Any]:
    return {
        "id": f"dlq_{place}",
        "tenant_id": TENANT,
        "job_id": job["id"],
        "shard_id": f"shard_{place % SHARDS}",
        "row": place // SHARDS,
        "custom_id": f"row-{place}",
        "cause": ExitCause.OUT_OF_MEMORY,
        "crashes": 3,
        "worker_id": "worker_gone",
        "died_at": now - timedelta(seconds=place),
        "state": DeadLetterState.DEAD if place % 10 == 0 else DeadLetterState.DISCARDED,
    }


def _endpoint(place: int, now: datetime) -> dict[str, Any]:
    return {
        "id": f"whe_{place}",
        "tenant_id": TENANT,
        "name": f"receiver {place}",
        "url": f"https://receiver-{place}.example/hook",
        "event_types": ["job.*"],
        "secret": b"",
        "secret_hint": "whsec_…",
        "created_at": now,
        "updated_at": now,
    }


def _delivery(chosen: random.Random, jobs: list[dict[str, Any]], place: int, now: datetime) -> dict[str, Any]:
    at = now - timedelta(seconds=place)
    return {
        "id": f"dlv_{place}",
        "event_id": f"evt_{place}",
        "tenant_id": TENANT,
        "job_id": chosen.choice(jobs)["id"],
        "event_type": "job.succeeded",
        "url": "https://receiver.example/hook",
        "body": "{}",
        "state": chosen.choices(list(DeliveryState), (1, 97, 2))[0],
        "attempts": 1,
        "next_at": at,
        "created_at": at,
        "endpoint_id": f"whe_{place % ENDPOINTS}",
    }


def _usage(place: int, now: datetime) -> dict[str, Any]:
    day = first_day(usage_day(now), USAGE_DAYS) + timedelta(days=place % USAGE_DAYS)
    counts = dict.fromkeys(("failed", "prompt_tokens", "cached_tokens", "completion_tokens"), 10)
    return {
        "tenant_id": TENANT,
        "day": day.isoformat(),
        "model": f"model-{place // USAGE_DAYS}",
        "succeeded": 100,
        **counts,
    }


def _key(place: int, now: datetime) -> dict[str, Any]:
    return {
        "id": f"key{place:09d}",
        "tenant_id": TENANT,
        "name": f"key {place}",
        "key_sha256": "0" * 64,
        "last4": "abcd",
        "created_at": now - timedelta(seconds=place),
    }


def _worker(place: int, now: datetime) -> dict[str, Any]:
    is_present = place < PRESENT_WORKERS
    heard_at = now + timedelta(hours=1) if is_present else now - timedelta(minutes=place)
    return {
        "id": f"worker_{place}",
        "host": "host",
        "pid": 1,
        "state": WorkerState.READY if is_present else WorkerState.STOPPED,
        "models": list(MODELS),
        "started_at": now - timedelta(minutes=place + 1),
        "heartbeat_at": heard_at,
        "ended_at": None if is_present else heard_at,
        "ended_cause": None if is_present else ExitCause.DRAINED,
    }
