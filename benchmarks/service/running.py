"""The whole service with production's settings and a real model, and jobs as a user submits them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.launch import LOGS_DIRECTORY
from benchmarks.reliability.services import PRODUCTION
from benchmarks.service.worker_process import POOL
from nightshift.jobs import Job, JobState
from nightshift.jobs.output_names import SUCCESS_NAME
from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts, Service

PARTS: Final = Parts(engine="demo", durable=True, are_forked=False)
WORKER: Final = "benchmarks.service.worker_process"
WAIT_S: Final = 4 * 3600.0
POLL_S: Final = 0.5  # the engine's cores are those that ask


@dataclass(frozen=True)
class Ended:
    """A job that ended with all its rows. Times are seconds since 1970."""

    job: Job
    submitted_s: float
    claimed_s: float
    """Its first shard."""
    success_s: float
    """`_SUCCESS` was there."""

    @property
    def after_claim_s(self) -> float:
        return self.success_s - self.claimed_s

    @property
    def after_submit_s(self) -> float:
        return self.success_s - self.submitted_s


@contextmanager
def service_with(
    model: Path | str, parts: Parts = PARTS, *, pool: str | None = None, **settings: str
) -> Iterator[Service]:
    """A service that has loaded `model`. `pool`: one of `worker_app`'s in the place of the worker's own.

    `settings` as in `tests.faults.kit.launch.running`.
    """
    own = {"MODELS": str(model), "DETERMINISTIC": "false"}
    if pool is not None:
        parts = replace(parts, worker=WORKER)
        own[POOL] = pool
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
        with running(Path(folder), parts, **(PRODUCTION | own | settings)) as service:
            yield service


def run_job(service: Service, body: dict[str, Any], rows: int) -> Ended:
    """Submit a job whose output is a folder of this machine, and wait for its end."""
    with service.client() as client:
        job_id = client.submit_job(body).id
    return ended(service, job_id, rows)


def ended(service: Service, job_id: str, rows: int) -> Ended:
    """Wait for a job's end. Raises AssertionError where a row is missing or failed."""
    ends_at_s = time.monotonic() + WAIT_S
    while not (job := fetch(service, job_id)).state.is_terminal:
        assert time.monotonic() < ends_at_s, f"{job_id} has not ended in {WAIT_S:.0f} s"
        time.sleep(POLL_S)
    assert (job.state, job.counts.succeeded) == (JobState.SUCCEEDED, rows), f"{job.state}: {job.errors}"
    assert job.started_at is not None
    assert job.spec.output is not None
    if job.spec.output.startswith("file://"):
        success_s = (Path(job.spec.output.removeprefix("file://")) / SUCCESS_NAME).stat().st_mtime
    else:
        assert job.finished_at is not None
        success_s = job.finished_at.timestamp()
    return Ended(job, job.created_at.timestamp(), job.started_at.timestamp(), success_s)


def fetch(service: Service, job_id: str) -> Job:
    with service.store.snapshot() as tx:
        return tx.jobs.fetch(job_id)


def start_cli(service: Service, *arguments: str) -> subprocess.Popen[str]:
    """`nightshift run --wait`, in a session of its own."""
    environment = os.environ | {
        "NIGHTSHIFT_BASE_URL": service.base_url,
        "NIGHTSHIFT_API_KEY": service.api_key,
    }
    command = (sys.executable, "-P", "-m", "nightshift.cli.main", "run", *arguments, "--wait")
    LOGS_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (LOGS_DIRECTORY / "nightshift-run.log").open("a") as log:
        return subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, text=True, start_new_session=True
        )


def clock_offset_s() -> float:
    """What is to be added to CLOCK_MONOTONIC for seconds since 1970."""
    return time.time() - time.monotonic()
