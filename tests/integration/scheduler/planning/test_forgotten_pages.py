"""A page of shards does not wait for PostgreSQL's disk: one that a crash undoes is cut again, once."""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from scheduler.input.writing import PlanOutcome
from tests.helpers.fakes import MODEL, FakeClock
from tests.integration import servers
from tests.integration.scheduler.scheduling import TEMPLATE, Place, jsonl
from tests.integration.servers import PostgresServer

FORGETFUL = "wal_writer_delay = 10s\n"  # what no commit waits for reaches the disk so much later


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="ns-") as folder, servers.postgresql(Path(folder)) as server:
        with (server.folder / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write(FORGETFUL)
        server.restart()
        yield server


@pytest.fixture
def place(server: PostgresServer, clock: FakeClock, tmp_path: Path) -> Iterator[Place]:
    with closing(Database(server.url(), timeout_s=600)) as database:
        upgrade(database)
        new_place = Place.at(Store(database, clock=clock), tmp_path)
        new_place.serve_model()
        yield new_place


def test_a_page_that_the_database_forgot_is_cut_again(place: Place, server: PostgresServer) -> None:
    (place.bucket / "in").mkdir()
    for number in range(12):
        (place.bucket / "in" / f"{number:03}.jsonl").write_bytes(jsonl([{"text": f"text {number}"}]))
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    duty = place.planning(page_shards=3, first_page_shards=2)
    pages = duty._pages(job)
    assert duty._writer.write(job, next(pages)) is PlanOutcome.PAGE  # its rings are deleted, which is durable
    begun = place.job(job)
    assert duty._writer.write(begun, next(pages)) is PlanOutcome.PAGE
    ahead = place.job(job)

    server.restart()
    place.store.database.close()  # the connections that the crash cut off

    assert (ahead.plan_cursor.shards, place.job(job).plan_cursor.shards) == (5, 2)
    assert duty._writer.write(ahead, next(pages)) is PlanOutcome.TOO_LATE
    place.run(duty)
    assert place.job(job).planned_at is not None
    assert [(shard.shard_no, shard.uri) for shard in place.shards(job)] == [
        (number, place.uri(f"in/{number:03}.jsonl")) for number in range(12)
    ]


def test_a_claim_keeps_the_page_of_its_shard(place: Place, server: PostgresServer) -> None:
    (place.bucket / "in").mkdir()
    for number in range(12):
        (place.bucket / "in" / f"{number:03}.jsonl").write_bytes(jsonl([{"text": f"text {number}"}]))
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    duty = place.planning(page_shards=3, first_page_shards=2)
    pages = duty._pages(job)
    for _ in range(2):
        assert duty._writer.write(place.job(job), next(pages)) is PlanOutcome.PAGE
    with place.store.transaction() as tx:
        assert tx.claims.bulk("worker", [MODEL], tx.now(), 30) is not None

    server.restart()
    place.store.database.close()

    assert place.job(job).plan_cursor.shards == 5
    assert len(place.shards(job)) == 5
