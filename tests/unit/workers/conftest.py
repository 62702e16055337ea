"""A worker's small, real surroundings: SQLite, a directory of objects, and a model that answers on demand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.jobs.leases import LeaseConfig
from nightshift.objectstore import Locations, ObjectStore, open_store
from nightshift.objectstore.sources import Sources
from nightshift.store import Store
from tests.helpers.databases import migrated_sqlite
from tests.unit.workers.scripted import ManualClock, RecordingStreams, ScriptedServer
from workers.leases.heartbeat import Heartbeat
from workers.serving.models import Models
from workers.shard.config import ShardDependencies
from workers.shard.run_once import EarlierJobs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(migrated_sqlite(tmp_path / "nightshift.db"))
    yield store
    store.close()


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "objects").as_uri())


@pytest.fixture
def model() -> ScriptedServer:
    return ScriptedServer("demo")


@pytest.fixture
def models(model: ScriptedServer) -> Models:
    return Models([model])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def heartbeat(store: Store, clock: ManualClock) -> Heartbeat:
    """Beats only when the test calls it."""
    return Heartbeat(store, "worker-1", LeaseConfig(), clock_s=clock)


@pytest.fixture
def streams() -> RecordingStreams:
    return RecordingStreams()


@pytest.fixture
def dependencies(
    store: Store, objects: ObjectStore, models: Models, heartbeat: Heartbeat, tmp_path: Path
) -> Iterator[ShardDependencies]:
    locations = Locations(file_roots=(tmp_path,))
    earlier_jobs = EarlierJobs(store, objects)
    yield ShardDependencies(store, objects, Sources(objects, locations), models, heartbeat, earlier_jobs)
    earlier_jobs.close()
