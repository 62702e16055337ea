"""`python -m scheduler` as a process: it leads, works without Redis, ends when told, and is replaced."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest

from nightshift.cli.processes.children import Launch
from nightshift.cli.processes.supervisor import Process
from nightshift.jobs import JobState
from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import downgrade, upgrade
from tests.faults.kit.forks import fork_server
from tests.integration.scheduler.scheduling import Place

NO_REDIS = "redis://127.0.0.1:1/0"


class Scheduler:
    """A running scheduler, and what it says."""

    def __init__(self, process: Process, lines: IO[str]) -> None:
        self._process = process
        self._lines = lines
        self._returncode: int | None = None

    def says(self, action: str) -> dict[str, Any]:
        """Reads on until it says this. The test's own timeout is the limit."""
        for line in self._lines:
            event: dict[str, Any] = json.loads(line)
            if event.get("action") == action:
                return event
        raise AssertionError(f"the scheduler ended without saying {action}")

    def all_it_says(self) -> str:
        """Waits until the process has ended."""
        return self._lines.read()

    def end(self, number: int = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code. The test's own timeout is the limit."""
        if self._returncode is None:
            self._returncode = self._process.wait()
        return self._returncode


@contextmanager
def scheduler(environment: Mapping[str, str]) -> Iterator[Scheduler]:
    reader, writer = os.pipe()
    with open(writer, "wb") as output:
        process = fork_server().spawn(Launch((sys.executable, "-P", "-m", "scheduler"), environment), output)
    with open(reader) as lines:
        started = Scheduler(process, lines)
        try:
            yield started
        finally:
            started.end(signal.SIGKILL)


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
        ("DATABASE_URL", "mysql://nowhere"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (("LEADER_TRUST_S", "20"), ("LEASE_TTL_S", "10"), ("REDIS_URL", "amqp://nowhere"))
        ),
    ],
)
def test_a_scheduler_that_is_configured_wrongly_says_what_and_is_not_to_be_restarted(
    environment: dict[str, str], setting: str, value: str
) -> None:
    environment[f"NIGHTSHIFT_{setting}"] = value
    with scheduler(environment) as started:
        assert setting.partition("_")[0] in started.says("misconfigured")["message"]
        assert started.wait() == 78


def test_a_scheduler_whose_schema_is_not_what_the_migrations_make_says_what_differs(
    place: Place, environment: dict[str, str]
) -> None:
    with place.store.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE segment DROP COLUMN earlier")
    with scheduler(environment) as started:
        assert "column segment.earlier is missing" in started.says("misconfigured")["message"]
        assert started.wait() == 78


def test_a_scheduler_that_is_started_before_the_migrations_have_run_waits_for_them(
    place: Place, environment: dict[str, str]
) -> None:
    downgrade(place.store.database, "-1")
    with scheduler(environment) as started:
        assert "nightshift.store.databases.migrate" in started.says("leadership_unknown")["message"]
        upgrade(place.store.database)
        started.says("leadership_gained")


def test_a_scheduler_whose_very_log_is_configured_wrongly_says_so_in_one_line(
    environment: dict[str, str],
) -> None:
    environment["NIGHTSHIFT_LOG_LEVEL"] = "loud"
    with scheduler(environment) as started:
        said = started.all_it_says()
        assert (started.wait(), said.count("\n")) == (78, 1)
    assert said.startswith("cannot start: NIGHTSHIFT_LOG_LEVEL is 'loud'")
