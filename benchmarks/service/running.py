"""The whole service with production's settings and a real model, and jobs as a user submits them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.reliability.services import PRODUCTION
from nightshift.jobs import Job, JobState
from nightshift.jobs.part import SUCCESS_NAME
from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts, Service

PARTS: Final = Parts(engine="demo", durable=True, are_forked=False)
WAIT_S: Final = 4 * 3600.0
POLL_S: Final = 0.5  # polling takes time of the engine's cores


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
def service_with(model: Path | str, parts: Parts = PARTS, **settings: str) -> Iterator[Service]:
    """A service that has loaded `model`. `settings` as in `tests.faults.kit.launch.running`."""
    own = {"MODELS": str(model), "DETERMINISTIC": "false"}
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
        with running(Path(folder), parts, **(PRODUCTION | own | settings)) as service:
            yield service


def run_job(service: Service, body: dict[str, Any], rows: int) -> Ended:
    """Submits a job whose output is a folder of this machine, and waits for its end.

    Raises AssertionError where a row is missing or failed.
    """
    with service.client() as client:
        job_id = client.submit_job(body).id
    ends_at_s = time.monotonic() + WAIT_S
    while not (job := _fetch(service, job_id)).state.is_terminal:
        assert time.monotonic() < ends_at_s, f"{job_id} has not ended in {WAIT_S:.0f} s"
        time.sleep(POLL_S)
    assert (job.state, job.counts.succeeded) == (JobState.SUCCEEDED, rows), f"{job.state}: {job.errors}"
    assert job.started_at is not None
    assert job.spec.output is not None
    success_s = (Path(job.spec.output.removeprefix("file://")) / SUCCESS_NAME).stat().st_mtime
    return Ended(job, job.created_at.timestamp(), job.started_at.timestamp(), success_s)


def _fetch(service: Service, job_id: str) -> Job:
    with service.store.snapshot() as tx:
        return tx.jobs.fetch(job_id)
