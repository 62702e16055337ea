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
from nightshift.store.leadership import Leadership
from nightshift.store.pending import OutputTotals, Pending, PendingWork
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

TRIES_MAX: Final = 4  # of a transaction that loses against others
CONFLICT_RETRY: Final = Backoff(
    first_s=0.02, longest_s=0.1
)  # at most: jitter, so that two do not conflict again


class Transaction:
    """The statements, grouped by noun, on one connection."""

    def __init__(self, connection: Connection, database: Database, clock: Clock | None) -> None:
        self._connection = connection
        self._database = database
        self._clock = clock

    def now(self) -> datetime:
        """The database's time, aware, UTC, unless tests replace the clock."""
        return self._clock() if self._clock else self._database.now(self._connection)

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self._connection)

    @cached_property
    def problems(self) -> Problems:
        return Problems(self._connection)

    @cached_property
    def positions(self) -> Positions:
        return Positions(self._connection)

    @cached_property
    def overview(self) -> Overview:
        return Overview(self._connection)

    @cached_property
    def controls(self) -> Controls:
        return Controls(self._connection)

    @cached_property
    def shards(self) -> Shards:
        return Shards(self._connection)

    @cached_property
    def claims(self) -> Claims:
        return Claims(self._connection)

    @cached_property
    def leases(self) -> Leases:
        return Leases(self._connection)

    @cached_property
    def cuts(self) -> Cuts:
        return Cuts(self._connection)

    @cached_property
    def parts(self) -> Parts:
        return Parts(self._connection)

    @cached_property
    def events(self) -> Events:
        return Events(self._connection)

    @cached_property
    def online(self) -> Online:
        return Online(self._connection)

    @cached_property
    def outbox(self) -> Outbox:
        return Outbox(self._connection)

    @cached_property
    def deliveries(self) -> Deliveries:
        return Deliveries(self._connection)

    @cached_property
    def webhook_endpoints(self) -> WebhookEndpoints:
        return WebhookEndpoints(self._connection)

    @cached_property
    def idempotency(self) -> Idempotency:
        return Idempotency(self._connection)

    @cached_property
    def files(self) -> Files:
        return Files(self._connection, self.holdings)

    @cached_property
    def uploads(self) -> Uploads:
        return Uploads(self._connection, self.holdings)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self._connection)

    @cached_property
    def page_sessions(self) -> PageSessions:
        return PageSessions(self._connection)

    @cached_property
    def tenants(self) -> Tenants:
        return Tenants(self._connection)

    @cached_property
    def usage(self) -> UsageSums:
        return UsageSums(self._connection)

    @cached_property
    def holdings(self) -> Holdings:
        return Holdings(self._connection)

    @cached_property
    def audit(self) -> Audit:
        return Audit(self._connection)

    @cached_property
    def workers(self) -> Workers:
        return Workers(self._connection)

    @cached_property
    def figures(self) -> Figures:
        return Figures(self._connection)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self._connection)

    @cached_property
    def counters(self) -> Counters:
        return Counters(self._connection)

    @cached_property
    def load(self) -> Load:
        return Load(self._connection)

    @cached_property
    def pending(self) -> Pending:
        return Pending(self._connection)

    @cached_property
    def deletions(self) -> Deletions:
        return Deletions(self._connection, self.holdings)

    @cached_property
    def ageing(self) -> Ageing:
        return Ageing(self._connection)

    @cached_property
    def references(self) -> References:
        return References(self._connection)

    @cached_property
    def leadership(self) -> Leadership:
        return Leadership(self._connection)


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
            tx.usage.write()
            tx.holdings.write()

    def run(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        """Do `work` in a transaction, again from the start after a conflict; its other effects must be
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
        """What the scheduler's duties have to do. Raises DatabaseUnavailable."""
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
    """As `open_database`, but creates nothing. Raises ConfigurationError if there is none."""
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
