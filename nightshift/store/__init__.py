"""The only SQL: a function per statement, its guards in the WHERE.

    with store.transaction() as tx:
        now = tx.now()
        job = tx.jobs.get(tenant_id, job_id)
        tx.shards.complete(lease, rows_total=500, now=now)

A tenant's queries all contain its tenant id; the service's own statements have a separate heading.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Final, TypeVar

from sqlalchemy import Connection

from nightshift.errors import ConfigurationError, Conflicted
from nightshift.jobs.backoff import Backoff
from nightshift.process.settings import DataSettings
from nightshift.store.counters import Counters
from nightshift.store.databases.changes import Changes
from nightshift.store.databases.database import Database
from nightshift.store.figures import Figures
from nightshift.store.files import Files
from nightshift.store.jobs.ageing import Ageing
from nightshift.store.jobs.controls import Controls
from nightshift.store.jobs.deletions import Deletions
from nightshift.store.jobs.events import Events
from nightshift.store.jobs.idempotency import Idempotency
from nightshift.store.jobs.jobs import Jobs
from nightshift.store.jobs.load import Load
from nightshift.store.jobs.online import Online
from nightshift.store.jobs.overview import Overview
from nightshift.store.jobs.positions import Positions
from nightshift.store.jobs.problems import Problems
from nightshift.store.jobs.references import References
from nightshift.store.jobs.windows import Windows
from nightshift.store.leadership import Leadership
from nightshift.store.pending import OutputTotals, Pending, PendingWork
from nightshift.store.schedules import Schedules
from nightshift.store.shards.claims import Claims
from nightshift.store.shards.cuts import Cuts
from nightshift.store.shards.dead_letters import DeadLetters
from nightshift.store.shards.leases import Leases
from nightshift.store.shards.outbox import Outbox
from nightshift.store.shards.parts import Parts
from nightshift.store.shards.shards import Shards
from nightshift.store.tenants.audit import Audit
from nightshift.store.tenants.holdings import Holdings
from nightshift.store.tenants.keys import Keys
from nightshift.store.tenants.page_sessions import PageSessions
from nightshift.store.tenants.tenants import Tenants
from nightshift.store.tenants.usage import UsageSums
from nightshift.store.uploads import Uploads
from nightshift.store.webhooks.deliveries import Deliveries
from nightshift.store.webhooks.endpoints import WebhookEndpoints
from nightshift.store.workers import Workers

__all__ = [
    "OutputTotals",
    "PendingWork",
    "Store",
    "Transaction",
    "open_database",
    "open_existing_database",
]

Clock = Callable[[], datetime]
T = TypeVar("T")

TRIES_MAX: Final = 4  # tries of a transaction that loses against others
CONFLICT_RETRY: Final = Backoff(
    first_s=0.02, longest_s=0.1
)  # at most: jitter, so that two do not conflict again


def _statements(noun: Callable[[Connection], T]) -> cached_property[T]:
    """A noun's statements, made when a transaction first needs them."""
    return cached_property(lambda tx: noun(tx._connection))


class Transaction:
    """The statements, grouped by noun, on one connection."""

    def __init__(self, connection: Connection, database: Database, clock: Clock | None) -> None:
        self._connection = connection
        self._database = database
        self._clock = clock

    def now(self) -> datetime:
        """The database's time, aware, UTC, unless tests replace the clock."""
        return self._clock() if self._clock else self._database.now(self._connection)

    jobs = _statements(Jobs)
    problems = _statements(Problems)
    positions = _statements(Positions)
    overview = _statements(Overview)
    controls = _statements(Controls)
    windows = _statements(Windows)
    shards = _statements(Shards)
    claims = _statements(Claims)
    leases = _statements(Leases)
    cuts = _statements(Cuts)
    parts = _statements(Parts)
    events = _statements(Events)
    online = _statements(Online)
    outbox = _statements(Outbox)
    deliveries = _statements(Deliveries)
    webhook_endpoints = _statements(WebhookEndpoints)
    idempotency = _statements(Idempotency)
    files = cached_property(lambda tx: Files(tx._connection, tx.holdings))
    uploads = cached_property(lambda tx: Uploads(tx._connection, tx.holdings))
    keys = _statements(Keys)
    page_sessions = _statements(PageSessions)
    tenants = _statements(Tenants)
    usage = _statements(UsageSums)
    holdings = _statements(Holdings)
    audit = _statements(Audit)
    workers = _statements(Workers)
    figures = _statements(Figures)
    dead_letters = _statements(DeadLetters)
    counters = _statements(Counters)
    load = _statements(Load)
    pending = _statements(Pending)
    deletions = cached_property(lambda tx: Deletions(tx._connection, tx.holdings))
    ageing = _statements(Ageing)
    references = _statements(References)
    leadership = _statements(Leadership)
    schedules = _statements(Schedules)

    def write_sums(self) -> None:
        """Writes what was added up: last, so that others wait shortly for these rows."""
        for name in ("usage", "holdings"):
            if name in self.__dict__:
                getattr(self, name).write()


class Store:
    def __init__(self, database: Database, *, clock: Clock | None = None) -> None:
        self.database = database
        self._clock = clock

    @contextmanager
    def transaction(self, *, durable: bool = True, redone: bool = False) -> Iterator[Transaction]:
        """A transaction that may write. Commits at its end, rolls back on an exception.

        Raises DatabaseUnavailable, also Conflicted (see `run`). `durable`, `redone`: see `Database.write`.
        """
        with self.database.write(durable=durable, redone=redone) as connection:
            tx = Transaction(connection, self.database, self._clock)
            yield tx
            tx.write_sums()

    def run(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        """Does `work` in a transaction, again from the start after a conflict; its other effects must be
        repeatable.

        Raises DatabaseUnavailable.
        """
        for conflicts in range(1, TRIES_MAX):
            try:
                with self.transaction(durable=durable) as tx:
                    return work(tx)
            except Conflicted:
                time.sleep(random.uniform(0, CONFLICT_RETRY.delay_s(conflicts)))
        with self.transaction(durable=durable) as tx:
            return work(tx)

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """A transaction that only reads. Raises DatabaseUnavailable."""
        with self.database.read() as connection:
            yield Transaction(connection, self.database, self._clock)

    def now(self) -> datetime:
        with self.snapshot() as tx:
            return tx.now()

    def pending(self) -> PendingWork:
        """Work for the scheduler's duties. Raises DatabaseUnavailable."""
        with self.snapshot() as tx:
            return tx.pending.work(tx.now())

    def changes(self) -> Changes:
        """Detects commits; the caller closes it."""
        return Changes(self.database)

    def close(self) -> None:
        self.database.close()


def open_database(settings: DataSettings) -> Database:
    """The settings' database; creates the directory of an SQLite file."""
    url = settings.resolved_database_url
    if url.startswith("sqlite:///") and not settings.database_url:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _database(settings)


def open_existing_database(settings: DataSettings) -> Database:
    """Opens a database like `open_database`, but creates nothing. Raises ConfigurationError if there is
    none.
    """
    database = _database(settings)
    if not database.is_missing:
        return database
    database.close()
    place = "NIGHTSHIFT_DATABASE_URL" if settings.database_url else str(settings.data_dir)
    raise ConfigurationError(
        f"no installation in {place}: `nightshift up` makes one; NIGHTSHIFT_DATA_DIR or "
        "NIGHTSHIFT_DATABASE_URL say where another is"
    )


def _database(settings: DataSettings) -> Database:
    return Database(
        settings.resolved_database_url,
        pool_size=settings.database_pool_size,
        busy_timeout_s=settings.database_busy_timeout_s,
        timeout_s=settings.database_timeout_s,
    )
