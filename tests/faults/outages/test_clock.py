"""The clocks of the API, the scheduler and the workers are wrong by an hour, each in its own way, and jump.

Only the database's clock counts, so the database is PostgreSQL, which has one of its own; SQLite's is that of
the one machine there is.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import Job, submit_some
from tests.faults.kit.clock import SOURCE, Clocks, shifting_library
from tests.faults.kit.launch import ROLE, running
from tests.faults.kit.service import Parts, Service
from tests.integration.servers import RAM_DISK

HOUR_S = 3600
ROLES = ("api", "scheduler-1", "worker-1")
WRONG = dict(zip(ROLES, (HOUR_S, -HOUR_S, HOUR_S), strict=True))
MINUTE_S = 60
ASK = "import time; print(time.time())"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def clocks(folder: Path) -> Iterator[Clocks]:
    library, places = shifting_library(folder), folder / "clocks"
    places.mkdir()
    clocks = Clocks(places, ROLES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("CLOCKS", str(places))
        yield clocks


@pytest.fixture(scope="module")
def service(clocks: Clocks, folder: Path) -> Iterator[Service]:
    place = folder / "service"
    place.mkdir()
    clocks.set(WRONG)
    with running(place, Parts(database="postgresql")) as service:
        yield service


def judge(service: Service, jobs: list[Job]) -> None:
    oracle.judge(service, jobs, Limits(attempts_max=1))


def test_the_clocks_are_wrong(service: Service) -> None:
    """The rest would prove nothing otherwise."""
    for role in ROLES:
        seen = subprocess.check_output([sys.executable, "-c", ASK], env={**os.environ, ROLE: role})
        assert abs(float(seen) - time.time() - WRONG[role]) < MINUTE_S
        for pid in service.pids(role):
            assert SOURCE.stem in Path(f"/proc/{pid}/maps").read_text()


def test_processes_an_hour_apart_work_together(service: Service) -> None:
    """Times in answers and in signed headers of webhooks, whose receivers refuse those minutes off, are the
    database's.
    """
    jobs = submit_some(service, seed=1, step_ms=10, max_runtime="30m")
    judge(service, jobs)
    now_s = service.store.now().timestamp()

    with service.http() as http:
        told = http.get(f"/v1/jobs/{jobs[0].id}").json()
    stamps = [int(request.headers["webhook-timestamp"]) for request in service.receiver.requests]
    assert stamps
    for moment_s in (told["created_at"], told["finished_at"], *stamps):
        assert abs(now_s - moment_s) < MINUTE_S


def test_clocks_jump_while_jobs_run(service: Service, clocks: Clocks) -> None:
    jobs = submit_some(service, seed=2, step_ms=10, max_runtime="30m")
    for shifts_s in ({role: -shift_s for role, shift_s in WRONG.items()}, dict.fromkeys(ROLES, 0), WRONG):
        clocks.set(shifts_s)
        jobs += submit_some(service, seed=3, step_ms=10)

    judge(service, jobs)
