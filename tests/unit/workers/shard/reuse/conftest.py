"""Jobs that are run to their last part, one reusing another."""

from collections.abc import Callable, Sequence

import pytest

from nightshift.bulk.results.part_writer import PartDependencies, PartWriter
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Job
from nightshift.jobs.files import file_key
from nightshift.jobs.ids import new_id
from nightshift.objectstore import Locations, ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.store import Store
from scheduler.duties.running_output import cut_job
from tests.unit.workers.scripted import TENANT, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import (
    AT_ONCE,
    INPUT,
    finished,
)
from tests.unit.workers.shard.reuse.reusing import (
    Repeatable,
    RunJob,
    job_of,
)


@pytest.fixture
def model() -> Repeatable:
    return Repeatable("demo")


@pytest.fixture
def write_parts(store: Store, objects: ObjectStore, tmp_path) -> Callable[[Job], None]:
    """What the scheduler and workers do with ended shards of a native job."""
    locations = Locations(file_roots=(tmp_path,))
    writer = PartWriter(
        PartDependencies(store, objects, Sources(objects, locations), locations, 10_000), "writer"
    )

    def write(job: Job) -> None:
        with store.transaction() as tx:
            tx.workers.register_model(
                Model(id="demo", kind=ModelKind.DECODER, context_length=128, revision="r1"), tx.now()
            )
        assert cut_job(store, job_of(store, job)) > 0
        while writer.write_next():
            pass
        with store.snapshot() as tx:
            assert tx.parts.problem(job.id) is None

    return write


@pytest.fixture
def run_job(store, objects, model, write_input, run, write_parts, tmp_path) -> RunJob:
    """Runs a job over these lines to its last part. `model.submitted` then has what it ran."""
    model.echo = True
    written: list[Sequence[str]] = [()]

    def run_all(lines: Sequence[str], earlier: Job | None = None, *, shards: int = 1, **spec: object) -> Job:
        model.submitted.clear()
        if lines != written[-1]:
            write_input(lines)
            written.append(lines)
        info = objects.head(file_key(TENANT, INPUT))
        assert info is not None
        named = {} if earlier is None else {"reuse": earlier.id, "reused_job": earlier.id}
        wishes = {"output": (tmp_path / new_id("out")).as_uri(), "etag": info.etag, **named, **spec}
        job = plan_bulk(store, INPUT, shards=shards, **wishes)
        for _ in range(shards):
            finished(run(claim_bulk(store), AT_ONCE))
        write_parts(job)
        return job_of(store, job)

    return run_all
