"""A job runs through three nights of its window: every clock, the database's too, is set to each in turn.

The last night is today's, so that webhooks are signed at a time that receivers take. Each of the others ends
with rows under way.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nightshift.jobs import ShardState
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import BulkJob, some_rows, submit_bulk
from tests.faults.kit.clock import Clocks, shifting_library
from tests.faults.kit.launch import ROLE, running
from tests.faults.kit.outages import killed
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import wait_for
from tests.integration.servers import RAM_DISK

DATABASE = "database-server"  # its role: PostgreSQL has a clock of its own, SQLite has those of its users
ROLES = (DATABASE, "api", "scheduler-1", "scheduler-2", "worker-1", "worker-2")
DAY_S = 86_400
ROWS = 240  # more than two nights, and less than three
LEFT_S = 4  # of a night when it begins here
UNSCALED = {"HEARTBEAT_S": "5", "LEASE_TRUST_S": "20", "LEASE_TTL_S": "30"}


class Nights:
    """A window that is open now and for half an hour, and the clocks."""

    def __init__(self, clocks: Clocks) -> None:
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        self._opens, self._ends = now - timedelta(minutes=1), now + timedelta(minutes=30)
        self._clocks = clocks
        self._shift_s = 0

    @property
    def window(self) -> str:
        return f"{self._opens:%H:%M}-{self._ends:%H:%M}"

    @property
    def seconds_over(self) -> float:
        """Seconds since the end of the night that the clocks show, and all nights are alike."""
        return (time.time() + self._shift_s - self._ends.timestamp() + DAY_S / 2) % DAY_S - DAY_S / 2

    def set_before_end(self, days_ago: int) -> None:
        """Sets every clock to some seconds before the end of that night."""
        self._set(int(self._ends.timestamp() - time.time()) - days_ago * DAY_S - LEFT_S)

    def set_to_today(self) -> None:
        self._set(0)

    def _set(self, shift_s: int) -> None:
        self._shift_s = shift_s
        self._clocks.set(dict.fromkeys(ROLES, shift_s))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)])
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def nights() -> Iterator[Nights]:
    """Processes started meanwhile have the clocks, PostgreSQL also as another user."""
    with (
        tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(name)
        library, places = shifting_library(folder), folder / "clocks"
        places.mkdir()
        nights = Nights(Clocks(places, ROLES))
        for path in (folder, library, places, *places.iterdir()):
            path.chmod(0o755)
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("CLOCKS", str(places))
        patch.setenv(ROLE, DATABASE)
        yield nights


@pytest.fixture
def service(nights: Nights, database: str) -> Iterator[Service]:
    nights.set_before_end(days_ago=2)
    with (
        tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder,
        running(Path(folder), Parts(database=database, workers=2, schedulers=2), **UNSCALED) as service,
    ):
        yield service


def shown(service: Service, job: BulkJob) -> dict[str, Any]:
    with service.http() as http:
        job_json: dict[str, Any] = http.get(f"/v1/jobs/{job.id}").json()
    return job_json


def is_running(service: Service, job: BulkJob) -> bool:
    with service.store.snapshot() as tx:
        return any(shard.state is ShardState.LEASED for shard in tx.shards.of_job(job.id, limit=1000))


def test_a_job_goes_on_night_after_night_and_nothing_is_lost_or_done_twice(
    service: Service, nights: Nights
) -> None:
    nights.set_before_end(days_ago=2)
    job = submit_bulk(service, some_rows(ROWS, step_ms=100), window=nights.window, completion_window="7d")
    for days_ago in (2, 1):
        nights.set_before_end(days_ago)
        # The second night begins without Redis, which forgets everything.
        with killed(service, keeps=False) if days_ago == 1 else nullcontext():
            wait_for("rows run", lambda: is_running(service, job))
            wait_for("the window's end", lambda: nights.seconds_over >= 0)
            wait_for("every shard is handed back", lambda: not is_running(service, job))
        print(f"handed back {nights.seconds_over:.2f} s after the end")
        wait_for("the job is paused", lambda: shown(service, job)["resumes_at"])
    between = shown(service, job)
    nights.set_to_today()
    oracle.judge(service, [job], Limits(attempts_max=1))

    assert between["status"] == "running"
    assert 0 < between["counts"]["succeeded"] < ROWS
    assert shown(service, job)["tokens_redone"] == 0
    with service.http() as http:
        lines = http.get(f"/v1/jobs/{job.id}/events").text.splitlines()
    told = [json.loads(line[6:])["type"] for line in lines if line.startswith("data: ")]
    turns = ("job.paused", "job.resumed", "run.missed")
    assert [type for type in told if type in turns] == ["job.paused", "run.missed", "job.resumed"] * 2
