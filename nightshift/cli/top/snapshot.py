"""The data of `top`, as the server tells it, and as `--once --json` prints it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from nightshift.cli.terminal import printable
from nightshift.client import Client
from nightshift.errors import NightshiftError
from nightshift.jobs import JobKind, JobState, JsonObject

JOBS_MAX: Final = 100  # the newest running ones, and as many that wait
WORKERS_MAX: Final = 500
RUNNING: Final = (JobState.RUNNING.value, JobState.FINALIZING.value)


@dataclass(frozen=True)
class Snapshot:
    at_s: float  # epoch, by the server's clock
    server: str
    overview: JsonObject
    workers: Sequence[JsonObject]
    jobs: Sequence[JsonObject]  # as /v1/jobs shows them

    def printable(self) -> "Snapshot":
        """The snapshot without any text that acts on a terminal."""
        return Snapshot(**{name: _printable(value) for name, value in vars(self).items()})


def take(client: Client, server: str) -> Snapshot:
    """Raises ApiError, ServerUnreachable."""
    overview = client.overview()
    workers = [worker for _, worker in zip(range(WORKERS_MAX), client.workers(), strict=False)]
    bulk = JobKind.BULK.value
    jobs = [job.data for job in client.list_jobs(status=RUNNING, kind=bulk, limit=JOBS_MAX)]
    waiting = client.list_jobs(status=JobState.QUEUED.value, kind=bulk, limit=JOBS_MAX)
    jobs += [job.data for job in waiting if job.data.get("problem") is not None]
    return Snapshot(float(overview["at"]), server, overview, workers, jobs)


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The document for scripts; its fields stay (docs/cli.md)."""
    overview = snapshot.overview
    return {
        "object": "top",
        "at": datetime.fromtimestamp(snapshot.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "server": snapshot.server,
        "service": overview["service"],
        "worker_states": overview["workers"],
        "history": overview["history"],
        "queue": overview["queue"],
        "queue_is_whole": overview["queue_is_whole"],
        "service_queue": overview["service_queue"],
        "workers_wanted": overview["workers_wanted"],
        "workers": list(snapshot.workers),
        "jobs": [job_document(job) for job in snapshot.jobs],
    }


def no_document(server: str, error: NightshiftError) -> dict[str, Any]:
    """The document about a server that gives no answer."""
    return {"object": "top", "server": server, "error": {"code": error.code, "message": error.message}}


def job_document(job: JsonObject) -> dict[str, Any]:
    counts = job.get("counts") or {}
    succeeded, failed = counts.get("succeeded", 0), counts.get("failed", 0)
    return {
        "id": job["id"],
        "name": job.get("name"),
        "status": job["status"],
        "model": job.get("model"),
        "priority": job.get("priority"),
        "is_paused": job.get("paused_at") is not None,
        "rows_done": succeeded + failed,
        "rows_failed": failed,
        "rows_total": counts.get("total"),
        "rows_estimated": job.get("rows_estimated"),
        "eta_at": job.get("eta_at"),
        "expires_at": job.get("expires_at"),
        "is_late": is_late(job),
        "problem": job.get("problem"),
    }


def is_late(job: JsonObject) -> bool | None:
    """Whether the job will miss its deadline at its present pace. None: that is not known."""
    eta_at, expires_at = job.get("eta_at"), job.get("expires_at")
    return None if eta_at is None or expires_at is None else eta_at > expires_at


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(name): _printable(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(element) for element in value]
    return value
