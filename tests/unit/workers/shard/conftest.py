"""A shard's input, and runners that end with the test."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from nightshift.jobs import BulkClaim
from nightshift.jobs.files import file_key
from nightshift.objectstore import ObjectStore
from tests.unit.workers.scripted import TENANT, ManualClock
from tests.unit.workers.shard.helpers import CONFIG, INPUT
from workers.leases.heartbeat import Heartbeat
from workers.shard.config import ShardConfig, ShardDependencies
from workers.shard.runner import ShardRunner


@pytest.fixture
def write_input(objects: ObjectStore) -> Callable[[Sequence[str]], None]:
    def write(lines: Sequence[str]) -> None:
        objects.put(file_key(TENANT, INPUT), "".join(line + "\n" for line in lines).encode())

    return write


@pytest.fixture
def run(
    dependencies: ShardDependencies, heartbeat: Heartbeat, clock: ManualClock
) -> Iterator[Callable[..., ShardRunner]]:
    runners: list[ShardRunner] = []

    def start(
        claim: BulkClaim, config: ShardConfig = CONFIG, dependencies: ShardDependencies = dependencies
    ) -> ShardRunner:
        runner = ShardRunner(claim, dependencies, config, on_end=lambda runner: None)
        heartbeat.hold(claim.lease, runner, clock())
        runner.start()
        runners.append(runner)
        return runner

    yield start
    for each in runners:
        each.lease_lost()
        assert each.join(10)
