"""Data that is kept for an hour takes no more room after a day than after three hours."""

from pathlib import Path

from nightshift.store import Store
from tests.helpers.fakes import FakeClock
from tests.integration.scheduler.retention.days import SETTLED_HOUR, Day, Load, growth

HOURS = 7
GROWTH_MAX = 1.1  # a page more or less; three times as many hours would be 3


def test_neither_database_nor_objects_grow_with_the_hours(
    store: Store, clock: FakeClock, tmp_path: Path
) -> None:
    load = Load(chats_per_hour=30, batches_per_hour=2, rows_per_batch=2, steps_per_hour=2)

    sizes = list(Day(store, clock, tmp_path).hours(load, HOURS))

    assert sizes[SETTLED_HOUR - 1].object_bytes > 0
    assert max(growth(sizes).values()) <= GROWTH_MAX, sizes
    assert sizes[-1].jobs < 4 * load.chats_per_hour
