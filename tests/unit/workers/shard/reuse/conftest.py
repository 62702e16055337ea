"""Jobs that are run to their last part, one reusing another."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nightshift.bulk.results.part_writer import PartDependencies, PartWriter
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Job
from nightshift.jobs.files import file_key
from nightshift.jobs.ids import new_id
from nightshift.objectstore import Locations
from nightshift.objectstore.sources import Sources
from scheduler.duties.running_output import cut_job
from tests.unit.workers.scripted import TENANT
from tests.unit.workers.shard.helpers import AT_ONCE, INPUT, Ground, finished
from tests.unit.workers.shard.reuse.reusing import Repeatable, RunJob


@pytest.fixture
def model() -> Repeatable:
    return Repeatable("demo")


@pytest.fixture
def write_parts(ground: Ground, tmp_path: Path) -> Callable[..., None]:
    """Does what the scheduler and workers do with ended shards of the job."""

    def write(root: Path = tmp_path) -> None:
        assert ground.job is not None
        locations = Locations(file_roots=(root,))
        demo = Model(id="demo", kind=ModelKind.DECODER, context_length=128, revision="r1")
        sources = Sources(ground.objects, locations)
        parts = PartDependencies(ground.store, ground.objects, sources, locations, 10_000)
        with ground.store.transaction() as tx:
            tx.workers.register_model(demo, tx.now())
        assert cut_job(ground.store, ground.recorded) > 0
        writer = PartWriter(parts, "writer")
        while writer.write_next():
            pass
        with ground.store.snapshot() as tx:
            assert tx.parts.problem(ground.job.id) is None

    return write


@pytest.fixture
def run_job(ground: Ground, write_parts: Callable[..., None], tmp_path: Path) -> RunJob:
    """Runs a job over these lines to its last part. `model.submitted` then has what it ran."""
    ground.model.echo = True

    def run_all(
        lines: Sequence[str],
        earlier: Job | None = None,
        *,
        shards: int = 1,
        writes: bool = True,
        **spec: object,
    ) -> Job:
        ground.model.submitted.clear()
        key, data = file_key(TENANT, INPUT), "".join(line + "\n" for line in lines).encode()
        if (info := ground.objects.head(key)) is None or ground.objects.read(key) != data:
            ground.objects.put(key, data)
            info = ground.objects.head(key)
        named = {} if earlier is None else {"reuse": earlier.id, "reused_job": earlier.id}
        wishes = {"output": (tmp_path / new_id("out")).as_uri(), "etag": info.etag, **named, **spec}
        ground.plan(None, shards=shards, **wishes)
        for _ in range(shards):
            finished(ground.lease(AT_ONCE))
        if writes:
            write_parts()
        return ground.recorded

    return run_all
