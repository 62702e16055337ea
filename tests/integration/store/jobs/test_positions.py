"""Places in the queue."""

from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.jobs.positions import POSITION_MAX
from tests.helpers.fakes import FakeClock, submit, submit_online
from tests.integration.store.databases.recording import copy_rows


def test_a_place_counts_better_classes_and_older_jobs(store: Store, clock: FakeClock) -> None:
    made = {}
    for name, priority in [
        ("older", PriorityClass.STANDARD),
        ("mine", PriorityClass.STANDARD),
        ("younger", PriorityClass.STANDARD),
        ("better", PriorityClass.INTERACTIVE),
        ("worse", PriorityClass.BACKGROUND),
    ]:
        made[name] = submit(store, priority=priority, tenant_id=name)
        clock.advance(seconds=1)
    submit_online(store)

    with store.snapshot() as tx:
        places = {name: tx.positions.places([job])[job.id] for name, job in made.items()}
        of_a_page = tx.positions.places(list(made.values()))

    assert of_a_page == {made[name].id: place for name, place in places.items()}
    assert places == {"better": 1, "older": 2, "mine": 3, "younger": 4, "worse": 5}


def test_jobs_of_the_same_moment_have_the_same_place(store: Store, clock: FakeClock) -> None:
    first, second = submit(store), submit(store)
    clock.advance(seconds=1)
    last = submit(store, tenant_id="another")

    with store.snapshot() as tx:
        assert tx.positions.places([last, second, first]) == {first.id: 1, second.id: 1, last.id: 3}
        assert tx.positions.places([]) == {}


def test_a_long_queue_is_counted_to_a_limit(own_database: Database, clock: FakeClock) -> None:
    store = Store(own_database, clock=clock)
    first = submit(store)
    copy_rows(
        store,
        tables.job,
        POSITION_MAX,
        id="'j' || number",
        created_at="created_at + 1000",
        output_place="NULL",
    )
    clock.advance(seconds=1)
    second = submit(store)
    clock.advance(seconds=1)
    last = submit(store)

    with store.snapshot() as tx:
        assert tx.positions.places([first, second, last]) == {
            first.id: 1,
            second.id: 2,
            last.id: POSITION_MAX,
        }
        assert tx.positions.places([last]) == {last.id: POSITION_MAX}
