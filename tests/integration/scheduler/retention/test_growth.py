"""Data that is kept for an hour takes no more room after a day than after three hours.

The days have chats and batches; each hour leaves bytes in the database and in the object store.

Time is the store's clock, which is set: hours take seconds. Every five minutes of it requests are
accepted, claimed and answered as the service does, and the scheduler's duties run, with everything kept for
one hour. Bytes that grow after the second full hour would grow for ever.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text

from nightshift.lifecycle import transitions
from nightshift.process.settings import RetentionSettings
from nightshift.store import Store, tables
from scheduler.duties.ageing import Ageing, AgeingConfig
from scheduler.duties.deletion import Deleting
from scheduler.duties.retention import Retention, RetentionConfig
from tests.helpers.fakes import FakeClock, InMemoryStreams, a_new_request, an_answer, claimed_online
from tests.integration.scheduler.scheduling import Place, a_line, jsonl

HOURS = 7
GROWTH_MAX = 1.1  # a page more or less; three times as many hours would be 3
SETTLED_HOUR = 3  # what is kept for an hour has been replaced by then
STEPS_PER_HOUR = 12  # after each of them the duties run
TENANTS = 20
TEXT_BYTES = 2000  # of a prompt, and of an answer

KEPT_FOR_S = 3600.0
ONE_HOUR = RetentionSettings(
    online_job_retention_s=KEPT_FOR_S,
    online_body_retention_s=KEPT_FOR_S,
    result_retention_s=KEPT_FOR_S,
    event_retention_s=KEPT_FOR_S,
    delivery_retention_s=KEPT_FOR_S,
    bulk_job_retention_s=KEPT_FOR_S,
)


@dataclass(frozen=True)
class Size:
    """After an hour."""

    hour: int
    database_bytes: int  # on PostgreSQL all tables and indexes, with dead rows and free space
    log_bytes: int  # SQLite's write-ahead log
    object_bytes: int
    jobs: int


@dataclass(frozen=True)
class Load:
    chats_per_hour: int
    batches_per_hour: int
    rows_per_batch: int = 20
    steps_per_hour: int = STEPS_PER_HOUR


class Day:
    """A service of one process under a clock that is set.

    On PostgreSQL each hour ends with a VACUUM, as the run is too short for autovacuum.
    """

    def __init__(self, store: Store, clock: FakeClock, folder: Path) -> None:
        self._store, self._clock = store, clock
        self.place = Place.at(store, folder)
        self.place.serve_model()
        objects = self.place.objects
        self._duties = (
            Ageing(store, InMemoryStreams(), AgeingConfig(ONE_HOUR), pause=_go_on),
            Deleting(store, objects, InMemoryStreams(), pause=_go_on),
            Retention(store, objects, RetentionConfig()),
        )

    def hours(self, load: Load, hours: int) -> Iterator[Size]:
        steps = load.steps_per_hour
        for hour in range(1, hours + 1):
            for step in range(steps):
                for number in range(
                    load.chats_per_hour * step // steps, load.chats_per_hour * (step + 1) // steps
                ):
                    self._chat(f"tenant-{number % TENANTS}")
                if step < load.batches_per_hour:
                    self._batch(load.rows_per_batch)
                self._clock.advance(hours=1 / steps)
                self._run_duties()
            yield self._size(hour)

    def _chat(self, tenant_id: str) -> None:
        body = {"messages": [{"role": "user", "content": secrets.token_urlsafe(TEXT_BYTES * 3 // 4)}]}
        with self._store.transaction(durable=False) as tx:
            new = replace(a_new_request(), tenant_id=tenant_id)
            submitted = transitions.submit_online(tx, new, body, tx.now())
            tx.outbox.delete([ring.id for ring in submitted.rings])
        claim = claimed_online(self._store, submitted.shard_id)
        answer = {"choices": [{"message": {"content": secrets.token_urlsafe(TEXT_BYTES * 3 // 4)}}]}
        with self._store.transaction(durable=False) as tx:
            assert transitions.record_answer(tx, claim, an_answer(body=answer), tx.now())

    def _batch(self, rows: int) -> None:
        """Runs a batch, from the upload of its file to its output."""
        place, expires_at = self.place, self._clock.now + timedelta(seconds=KEPT_FOR_S)
        data = jsonl(a_line(f"r{row}", secrets.token_urlsafe(TEXT_BYTES * 3 // 4)) for row in range(rows))
        job = place.batch(data, expires_at=expires_at, output_expires_after_s=int(KEPT_FOR_S))
        for duty in (place.planning(shard_bytes=4 * TEXT_BYTES), place.assembly()):
            self.place.run(duty)
            place.work_off()
        assert place.job(job).state.is_terminal
        with self._store.transaction(durable=False) as tx:
            tx.outbox.delete([ring.id for ring in tx.outbox.waiting(self._clock.now, 10_000)])

    def _run_duties(self) -> None:
        for duty in self._duties:
            while duty.run_once(self._clock.now).has_more:
                continue

    def _size(self, hour: int) -> Size:
        database = self._store.database
        with database.read() as connection:
            jobs = connection.execute(select(func.count()).select_from(tables.job)).scalar_one()
        objects = sum(info.size_bytes for info in self.place.objects.list())
        if database.is_sqlite:
            path = Path(str(database._engine.url.database))
            log = path.with_name(path.name + "-wal")
            return Size(hour, path.stat().st_size, log.stat().st_size, objects, jobs)
        _vacuum(self._store)
        return Size(hour, _table_bytes(self._store), 0, objects, jobs)


def _go_on(seconds: float) -> None:
    """Nothing else wants the database."""


def _table_bytes(store: Store) -> int:
    wanted = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    with store.database.read() as connection:
        return int(connection.execute(text(wanted)).scalar_one())


def _vacuum(store: Store) -> None:
    """Gives PostgreSQL's freed space back to its tables."""
    connection = store.database.connect()
    ours: Any = connection.dbapi_connection
    try:
        ours.execute("VACUUM ANALYZE")
    finally:
        connection.close()


def growth(sizes: list[Size]) -> dict[str, float]:
    """The most that each kind of bytes has after the settled hour, by the most until then."""
    first, rest = sizes[:SETTLED_HOUR], sizes[SETTLED_HOUR:]
    names = ("database_bytes", "log_bytes", "object_bytes")
    return {name: _most(rest, name) / max(1, _most(first, name)) for name in names}


def _most(sizes: list[Size], name: str) -> int:
    most: int = max(getattr(size, name) for size in sizes)
    return most


def test_neither_database_nor_objects_grow_with_the_hours(
    store: Store, clock: FakeClock, tmp_path: Path
) -> None:
    load = Load(chats_per_hour=30, batches_per_hour=2, rows_per_batch=2, steps_per_hour=2)

    sizes = list(Day(store, clock, tmp_path).hours(load, HOURS))

    assert sizes[SETTLED_HOUR - 1].object_bytes > 0
    assert max(growth(sizes).values()) <= GROWTH_MAX, sizes
    assert sizes[-1].jobs < 4 * load.chats_per_hour
