"""A shard's ground, whose runners end with the test."""

from collections.abc import Iterator

import pytest

from nightshift.store import Store
from tests.unit.workers.scripted import ManualClock, ScriptedServer
from tests.unit.workers.shard.helpers import Ground
from workers.leases.heartbeat import Heartbeat
from workers.shard.config import ShardDependencies


@pytest.fixture
def ground(
    store: Store,
    dependencies: ShardDependencies,
    model: ScriptedServer,
    heartbeat: Heartbeat,
    clock: ManualClock,
) -> Iterator[Ground]:
    ground = Ground(store, dependencies, model, heartbeat, clock)
    yield ground
    for runner in ground.runners:
        runner.lease_lost()
        assert runner.join(10)
