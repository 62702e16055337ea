"""`python -m scheduler` as a process: it leads, works without Redis, ends when told, and is replaced."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest

from nightshift.jobs import JobState
from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.store import Store
from nightshift.store.databases.database import Database
from tests.integration.scheduler.scheduling import Place

NO_REDIS = "redis://127.0.0.1:1/0"
END_S = 30.0


class Scheduler:
    """A running scheduler, and what it says."""

    def __init__(self, process: "subprocess.Popen[str]", lines: IO[str]) -> None:
        self.process = process
        self._lines = lines

    def says(self, action: str) -> dict[str, Any]:
        """Read on until it says this. The test's own timeout is the limit."""
        for line in self._lines:
            event: dict[str, Any] = json.loads(line)
            if event.get("action") == action:
                return event
        raise AssertionError(f"the scheduler ended without saying {action}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_S)


@contextmanager
def scheduler(environment: Mapping[str, str]) -> Iterator[Scheduler]:
    command = [sys.executable, "-m", "scheduler"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield Scheduler(process, process.stderr)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def place(sqlite_template: Path, tmp_path: Path) -> Iterator[Place]:
    database = Database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path)}")
    yield Place.at(Store(database), tmp_path)
    database.close()


@pytest.fixture
def environment(place: Place, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "NIGHTSHIFT_DATA_DIR": str(tmp_path),
        "NIGHTSHIFT_DATABASE_URL": f"sqlite:///{tmp_path / 'nightshift.db'}",
        "NIGHTSHIFT_STORAGE_URL": place.objects.url,
        "NIGHTSHIFT_REDIS_URL": NO_REDIS,
        "NIGHTSHIFT_LOG_FORMAT": "json",
    }


def test_a_scheduler_works_ends_when_told_and_hands_over_to_the_next(
    place: Place, environment: dict[str, str]
) -> None:
    with scheduler(environment) as leader:
        leader.says("leadership_gained")
        with scheduler(environment) as standby:
            standby.says("scheduler_started")
            job = place.batch(b"{not json\n")
            leader.says("input_refused")
            assert place.job(job).state is JobState.FAILED

            assert leader.end(signal.SIGTERM) == 0
            standby.says("leadership_gained")
            assert standby.end(signal.SIGINT) == 0


def test_a_scheduler_leads_for_as_long_as_it_is_configured_to(
    place: Place, environment: dict[str, str]
) -> None:
    environment["NIGHTSHIFT_LEADER_TTL_S"] = "100000"
    with scheduler(environment) as leader:
        term = leader.says("leadership_gained")["term"]
        with place.store.transaction() as tx:
            tomorrow = tx.now() + timedelta(days=1)
            assert not tx.leadership.acquire(SCHEDULER_DUTY, "another", tomorrow, tomorrow)
            after_that = tomorrow + timedelta(days=1)
            assert tx.leadership.acquire(SCHEDULER_DUTY, "another", after_that, after_that) == term + 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("WEBHOOK_ALLOW_CIDRS", "not-a-network"),
        ("LEADER_TRUST_S", "20"),
        ("LEASE_TTL_S", "10"),
        ("DATABASE_URL", "mysql://nowhere"),
        ("REDIS_URL", "amqp://nowhere"),
    ],
)
def test_a_scheduler_that_is_configured_wrongly_says_what_and_is_not_to_be_restarted(
    environment: dict[str, str], setting: str, value: str
) -> None:
    environment[f"NIGHTSHIFT_{setting}"] = value
    with scheduler(environment) as started:
        assert setting.partition("_")[0] in started.says("misconfigured")["message"]
        assert started.process.wait(END_S) == 78


def test_a_scheduler_whose_very_log_is_configured_wrongly_says_so_in_one_line(
    environment: dict[str, str],
) -> None:
    environment["NIGHTSHIFT_LOG_LEVEL"] = "loud"
    command = [sys.executable, "-m", "scheduler"]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=END_S
    )

    assert (ended.returncode, ended.stderr.count("\n")) == (78, 1)
    assert ended.stderr.startswith("cannot start: NIGHTSHIFT_LOG_LEVEL is 'loud'")
