"""Doctor's findings about the database, the schema, its clock, the scheduler and the workers."""

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from nightshift.cli.doctor.examination import Status
from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import downgrade, upgrade
from tests.faults.kit.clock import shifted_environment
from tests.integration import servers
from tests.integration.cli.doctor.conftest import Look, expect

OF_DATABASE = ("database", "database.schema", "database.clock")


@pytest.fixture
def url(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with the current schema, on each in turn, as the installation's."""
    with_schema(empty_database_url)
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", empty_database_url)
    return empty_database_url


def with_schema(url: str) -> None:
    database = Database(url)
    upgrade(database)
    database.close()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(Database(url))
    yield store
    store.close()


def test_a_database_that_works_is_well_and_its_servers_version_is_named(look: Look, url: str):
    assert [look(id).status for id in OF_DATABASE] == [Status.OK] * 3
    assert look("database").detail.startswith(f"{url.partition('+')[0].partition(':')[0]} ")


def test_a_migration_that_was_not_applied_is_an_error(look: Look, url: str, store: Store):
    downgrade(store.database, "-1")
    expect(look("database.schema"), Status.ERROR, "python -m nightshift.store.databases.migrate")
    upgrade(store.database)
    assert look("database.schema").status is Status.OK


def test_a_schema_from_before_the_first_release_is_an_error_with_what_to_do(look: Look, store: Store):
    with store.database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0045'")
    expect(look("database.schema"), Status.ERROR, "is at migration 0045", "begin with a new database")


@pytest.mark.parametrize(
    "statement", ["INSERT INTO alembic_version VALUES ('0045')", "DELETE FROM alembic_version"]
)
def test_a_revision_that_cannot_be_told_is_an_error_with_what_to_do(look: Look, store: Store, statement: str):
    with store.database.write() as connection:
        connection.exec_driver_sql(statement)
    finding = expect(look("database.schema"), Status.ERROR)
    assert finding.advice.startswith("The table alembic_version ")
    assert "restore a backup of " in finding.advice


def test_a_schema_that_lacks_something_is_an_error_that_names_it(look: Look, store: Store):
    with store.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE segment DROP COLUMN earlier")

    expect(look("database.schema"), Status.ERROR, "column segment.earlier is missing")


def test_a_database_server_with_a_wrong_clock_is_an_error(look: Look, monkeypatch):
    with (
        monkeypatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ns-") as clock,
        tempfile.TemporaryDirectory(prefix="ns-") as folder,
    ):
        Path(clock).chmod(0o755)  # for the server's own user
        for name, value in shifted_environment(Path(clock), ahead_s=3600).items():
            patch.setenv(name, value)
        with servers.postgresql(Path(folder)) as server:
            patch.undo()
            monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", server.url())
            finding = expect(look("database.clock"), Status.ERROR)
    assert finding.figures["ahead_s"] == pytest.approx(3600, abs=60)


def test_a_scheduler_that_leads_is_well(look: Look, store: Store):
    assert look("scheduler").status is Status.SKIPPED, "no job waits for one"
    with store.transaction() as tx:
        now = tx.now()
        term = tx.leadership.acquire(SCHEDULER_DUTY, "scheduler-1", now, now + timedelta(minutes=5))
    assert look("scheduler").status is Status.OK
    with store.transaction() as tx:
        assert term is not None
        assert tx.leadership.renew(
            SCHEDULER_DUTY, "scheduler-1", term, tx.now() + timedelta(minutes=5), "retention"
        )
    finding = look("scheduler")
    assert (finding.status, finding.detail) == (Status.ERROR, "the scheduler's duty 'retention' stands still")
