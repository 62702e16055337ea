"""Fixtures for real parts; the servers are in `servers.py`."""

import functools
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import botocore.session
import pytest
from sqlalchemy import create_engine, text

from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from tests.helpers.databases import emptied, migrated_sqlite
from tests.helpers.fakes import FakeClock
from tests.integration import servers
from tests.integration.servers import PostgresServer, S3Server, ValkeyServer

HERE = Path(__file__).parent
DATABASES = ("sqlite", "postgresql")
# The database of `make test` for tests that name none. Tests of other folders run on both.
USUAL_DATABASE = {"store": "postgresql", "lifecycle": "postgresql", "scheduler": "sqlite"}
ON_BOTH = HERE / "store" / "databases"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the other database to `make test-all`."""
    for item in items:
        dialect = item.callspec.params.get("dialect") if hasattr(item, "callspec") else None
        if dialect is not None and dialect not in _databases(item):
            item.add_marker(pytest.mark.exhaustive)


def _databases(item: pytest.Item) -> Sequence[str]:
    """Names of the databases on which `make test` runs a test."""
    named = item.get_closest_marker("databases")
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    if named is not None:
        return named.args
    if folder not in USUAL_DATABASE or item.path.is_relative_to(ON_BOTH):
        return DATABASES
    return [USUAL_DATABASE[folder]]


@pytest.fixture(scope="session", autouse=True)
def _botocore_reads_its_files_once() -> Iterator[None]:
    """It would read what it knows of S3 for every client anew, in 70 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
        yield


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with servers.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(params=["moto", "rclone"])
def s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """Each S3 server in turn, with the AWS environment pointing at it."""
    server: S3Server = request.getfixturevalue(f"{request.param}_server")
    with server.in_environment():
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    """A new, empty bucket on it."""
    return s3_server.new_bucket()


@pytest.fixture
def clock() -> FakeClock:
    """The database's time, which passes when a test says so."""
    return FakeClock()


@pytest.fixture
def store(database: Database, clock: FakeClock) -> Store:
    """An empty store on each database in turn, with the test's clock."""
    return Store(database, clock=clock)


@pytest.fixture(params=DATABASES)
def dialect(request: pytest.FixtureRequest) -> str:
    """Each database in turn; `USUAL_DATABASE` and the `databases` marker name those of `make test`."""
    return str(request.param)


@pytest.fixture
def database(dialect: str, request: pytest.FixtureRequest) -> Database:
    """Each database in turn: current schema, no rows."""
    database: Database = request.getfixturevalue(f"{dialect}_database")
    return database


@pytest.fixture
def sqlite_database(one_sqlite_database: Database) -> Database:
    return emptied(one_sqlite_database)


@pytest.fixture(scope="session")
def one_sqlite_database() -> Iterator[Database]:
    """One for all tests: each database compiles the statements anew that it is asked."""
    with tempfile.TemporaryDirectory(prefix="ns-", dir=servers.RAM_DISK) as folder:
        database = migrated_sqlite(Path(folder) / "nightshift.db")
        yield database
        database.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "nightshift.db"
    migrated_sqlite(path).close()
    return path


@pytest.fixture
def postgresql_database(migrated_postgresql: Database) -> Database:
    return emptied(migrated_postgresql)


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql_server: PostgresServer) -> Iterator[Database]:
    database = Database(postgresql_server.url(), timeout_s=600)  # a busy machine may hold a test up
    upgrade(database)
    yield database
    database.close()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="ns-") as folder, servers.postgresql(Path(folder)) as server:
        yield server


@pytest.fixture
def empty_database_url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without a schema, on each in turn."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    server: PostgresServer = request.getfixturevalue("postgresql_server")
    return server.url(created_in(server))


@pytest.fixture
def own_database(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with the current schema that the test may alter, on each in turn."""
    if dialect == "sqlite":
        database = migrated_sqlite(tmp_path / "own.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgresql_server")
        template: str = request.getfixturevalue("postgresql_template")
        database = Database(server.url(created_in(server, f"TEMPLATE {template}")))
    yield database
    database.close()


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: PostgresServer) -> str:
    """The name of a migrated database to copy."""
    name = created_in(postgresql_server)
    with closing(Database(postgresql_server.url(name), timeout_s=600)) as database:
        upgrade(database)
    return name


def created_in(server: PostgresServer, options: str = "") -> str:
    """Creates a database; returns its name."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(server.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
    engine.dispose()
    return name


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    with _valkey() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: ValkeyServer) -> ValkeyServer:
    """A running Valkey without keys, shared with other tests: do not kill it."""
    valkey_server.client.flushall()
    return valkey_server


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A running Valkey for this test alone, to be killed."""
    with _valkey() as server:
        yield server


@contextmanager
def _valkey() -> Iterator[ValkeyServer]:
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        server = ValkeyServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.client.close()
            server.kill()
