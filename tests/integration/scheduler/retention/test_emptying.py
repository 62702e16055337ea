"""A service that was filled is empty again once everything that jobs had has had its time.

The scheduler's duties run under a clock that is set. What tenants and administrators keep stays.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import func, select, text

from nightshift.jobs.files import UNRECORDED_S
from nightshift.objectstore.s3 import S3Store
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.tenants.holdings import Holding
from scheduler.duties.ageing import Ageing
from scheduler.duties.deletion import Deleting
from scheduler.duties.recovery import Recovery
from scheduler.duties.retention import CLOCK_KEY, Retention
from scheduler.duties.ringing import Ringing
from scheduler.duties.stopping import Deadlines, Stopping
from scheduler.runtime.duty import RunsInBackground
from tests.helpers.fakes import FakeClock, InMemoryStreams
from tests.integration.scheduler.retention.filling import attempt_deliveries, fill
from tests.integration.scheduler.scheduling import IDLE_S, Place
from tests.integration.servers import S3Server
from tests.integration.store.watching import holding

# A row each for what there is of it, however many jobs there were.
STAYING: Final = {"usage", "holding", "counter", "leadership", "model", "service_figure"}
OF_TENANTS: Final = {
    *("api_key", "page_session", "audit", "tenant", "tenant_secret", "webhook_endpoint"),
    *("schedule", "schedule_version", "schedule_run"),
}
DAYS: Final = (1, 1, 6, 23, 1, 60, 5, 100)  # between two rounds of the duties; past every time there is


@dataclass
class Found:
    """Rows and objects that there are, to compare."""

    rows: Mapping[str, int]  # of every other table
    objects: set[str]  # with files and folders that no listing shows


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.exhaustive),
        "postgresql",
        pytest.param("sqlite, s3", marks=pytest.mark.exhaustive),
    ]
)
def place(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[Place]:
    """A place on each database, and with the service's objects in each kind of store."""
    database, _, objects_in = request.param.partition(", ")
    store = Store(request.getfixturevalue(f"{database}_database"), clock=clock)
    with ExitStack() as stack:
        new_place = Place.at(store, tmp_path)
        if objects_in:
            server: S3Server = request.getfixturevalue("moto_server")
            stack.enter_context(server.in_environment())
            objects: Any = S3Store(server.client, server.new_bucket(), "own")
            new_place = Place(store, objects, new_place.bucket)
        new_place.serve_model()
        assert new_place.elector.attempt()
        yield new_place


def test_nothing_is_left_of_what_jobs_had(place: Place, clock: FakeClock) -> None:
    before = found_in(place)
    fill(place)
    full = found_in(place)
    assert not [name for name, count in full.rows.items() if count == 0], "each table has had a row"

    empty(place, clock)

    assert found_in(place) == before
    assert holding(place.store, "default") == Holding()


@pytest.mark.exhaustive
def test_a_database_that_was_emptied_has_room_for_as_much_again(
    sqlite_database: Database, clock: FakeClock, tmp_path: Path
) -> None:
    place = Place.at(Store(sqlite_database, clock=clock), tmp_path)
    place.serve_model()
    pages = []
    for _ in range(2):
        fill(place)
        empty(place, clock)
        pages.append(pages_in_use(sqlite_database))

    assert pages[1] == pages[0]


def empty(place: Place, clock: FakeClock) -> None:
    """Time passes, and with it the scheduler's rounds. Receivers take what they are owed."""
    for days in DAYS:
        clock.advance(days=days)
        make_old(place)
        run_duties(place)
        answer_deliveries(place)


def run_duties(place: Place) -> None:
    store = place.store
    ending = (Recovery(store), Deadlines(store), Stopping(store))
    assembling = (place.planning(), place.output_parts(), place.assembly())
    deleting = (
        Ringing(store, place.queue),
        Ageing(store, InMemoryStreams(), pause=_go_on),
        Deleting(store, place.objects, InMemoryStreams(), pause=_go_on),
        Retention(store, place.objects),
    )
    for duty in (*ending, *assembling, *deleting):
        while duty.run_once(place.store.now()).has_more:
            continue
        if isinstance(duty, RunsInBackground):
            assert duty.wait_until_idle(IDLE_S)


def _go_on(seconds: float) -> None:
    """Nothing else wants the database."""


def make_old(place: Place) -> None:
    """All there is in the directory was written long before. S3's clock is not ours."""
    for path in sorted(own_paths(place), reverse=True):  # a folder after what is in it
        os.utime(path, (path.stat().st_mtime - 2 * UNRECORDED_S,) * 2)


def found_in(place: Place) -> Found:
    with place.store.database.read() as connection:
        rows = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables.metadata.sorted_tables
            if table.name not in STAYING | OF_TENANTS
        }
    if place.objects.url.startswith("s3:"):
        keys = {info.key for info in place.objects.list()}
        return Found(rows, (keys | {staged.key for staged in place.objects.staged()}) - {CLOCK_KEY})
    names = {path.relative_to(own_folder(place)).as_posix() for path in own_paths(place)}
    return Found(rows, names - {CLOCK_KEY, CLOCK_KEY.partition("/")[0]})


def own_paths(place: Place) -> list[Path]:
    """Files and folders of the service's directory, also those that no listing shows."""
    return list(own_folder(place).rglob("*"))


def own_folder(place: Place) -> Path:
    return place.bucket.parent / "objects"


def answer_deliveries(place: Place) -> None:
    with place.store.snapshot() as tx:
        owed = [
            delivery
            for delivery in tx.deliveries.list("default", limit=100)
            if delivery.state is DeliveryState.PENDING
        ]
    for job_id in {delivery.job_id for delivery in owed}:
        attempt_deliveries(place, job_id, 200, DeliveryState.DELIVERED)


def pages_in_use(database: Database) -> int:
    with database.read() as connection:
        count, free = (
            connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("page_count", "freelist_count")
        )
    return int(count) - int(free)
