"""Rows with the same request share their answer: within a job, and with an earlier job that is named."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import DatabaseUnavailable, StorageUnavailable
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Job, ShardState
from nightshift.jobs.ids import new_id
from nightshift.jobs.part_options import PartOptions
from nightshift.objectstore import Locations, ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.output.digest_files import folder
from nightshift.output.earlier_results import EarlierResults
from nightshift.output.part_writer import PartDependencies, PartWriter
from nightshift.store import Store
from scheduler.duties.output_parts import cut_job
from tests.unit.workers.scripted import TENANT, ScriptedServer, chat_body, claim_bulk, plan_bulk, prompt_of
from tests.unit.workers.shard.helpers import (
    INPUT,
    batch_line,
    by_id,
    finished,
    results_of,
    shard_of,
    wait_until,
)
from workers.shard.config import ShardDependencies
from workers.shard.rows import reading


class Repeatable(ScriptedServer):
    """Answers without a temperature are not drawn at random."""

    def is_repeatable(self, request: ModelRequest) -> bool:
        return getattr(request, "temperature", None) is None


@pytest.fixture
def model() -> Repeatable:
    return Repeatable("demo")


def prompts(model: ScriptedServer) -> list[str]:
    return sorted(prompt_of(inference) for inference in model.submitted)


def text_of(result) -> str:
    return result.body["choices"][0]["message"]["content"]


def reused(store: Store, job: Job) -> int:
    with store.snapshot() as tx:
        return tx.jobs.fetch(job.id).rows_reused


# -- within a job


def test_rows_with_the_same_request_are_run_once_and_each_has_its_own_result(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(n, f"text {n % 2}", doc=n) for n in range(6)])
    job = plan_bulk(store, INPUT, parts=PartOptions(keep_columns=("doc",)))
    runner = run(claim_bulk(store))
    for inference in model.wait_for(2):
        model.answer(inference.id)
    finished(runner)

    assert prompts(model) == ["text 0", "text 1"]
    results = by_id(results_of(store, objects, job))
    assert {id: text_of(result) for id, result in results.items()} == {
        f"r{n}": f"TEXT {n % 2}" for n in range(6)
    }
    assert {id: json.loads(result.kept) for id, result in results.items()} == {
        f"r{n}": {"doc": n} for n in range(6)
    }
    assert len({result.body["id"] for result in results.values()}) == 6
    assert sum(result.is_reused for result in results.values()) == 4
    assert reused(store, job) == 4
    shard = shard_of(store, job)
    assert (shard.state, shard.rows_done) == (ShardState.DONE, 6)


def test_a_row_after_the_answer_is_there_has_it_at_once(store, objects, model, write_input, run) -> None:
    model.echo = True
    write_input([batch_line(n, "same") for n in range(50)])
    job = plan_bulk(store, INPUT)
    finished(run(claim_bulk(store)))

    assert prompts(model) == ["same"]
    assert len(by_id(results_of(store, objects, job))) == 50
    assert reused(store, job) == 49


def test_shards_of_one_job_share_and_other_jobs_do_not(store, objects, model, write_input, run) -> None:
    model.echo = True
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=3)
    for _ in range(3):
        finished(run(claim_bulk(store)))
    assert prompts(model) == ["same"]

    plan_bulk(store, INPUT)
    finished(run(claim_bulk(store)))
    assert prompts(model) == ["same", "same"]


def test_what_is_drawn_at_random_is_run_for_each_row_unless_it_is_to_be_shared(
    store, model, write_input, run
) -> None:
    model.echo = True
    write_input([batch_line(n, body=chat_body("same", temperature=0.7)) for n in range(3)])
    plan_bulk(store, INPUT)
    finished(run(claim_bulk(store)))
    assert len(prompts(model)) == 3

    plan_bulk(store, INPUT, reuse_sampled=True)
    finished(run(claim_bulk(store)))
    assert len(prompts(model)) == 4


def test_a_row_whose_twin_fails_is_run_itself(store, objects, model, write_input, run) -> None:
    write_input([batch_line(n, "same") for n in range(3)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    for _ in range(3):
        [first] = model.wait_for(1)
        assert first.identity.name.endswith("/0")
        model.fail(first.id, "the logits are not finite")
    [second] = model.wait_for(1)
    model.answer(second.id)
    finished(runner)

    assert second.identity.name.endswith("/1")
    results = by_id(results_of(store, objects, job))
    assert [results[f"r{n}"].status_code for n in range(3)] == [500, 200, 200]
    assert reused(store, job) == 1


def test_a_row_whose_twin_was_lost_with_its_lease_is_run_itself(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0, "same")])
    job = plan_bulk(store, INPUT, shards=2)
    losing, waiting = claim_bulk(store), claim_bulk(store)
    first = run(losing)
    model.wait_for(1)
    second = run(waiting)
    wait_until(lambda: len(second._rows._waiting) == 1)

    first.lease_lost()
    finished(first)
    [inference] = [each for each in model.wait_for(1) if each.identity.name.endswith("/1/0")]
    model.answer(inference.id)
    finished(second)

    assert len(results_of(store, objects, job)) == 1


def test_a_shard_that_leaves_does_not_keep_its_twin_waiting(store, objects, model, write_input, run) -> None:
    """It waits itself, and is drained: nobody will tell it."""
    write_input([batch_line(0, "same")])
    plan_bulk(store, INPUT, shards=3)
    first, second, third = (run(claim_bulk(store)) for _ in range(3))
    [inference] = model.wait_for(1)
    runners = {0: first, 1: second, 2: third}
    leader = int(inference.identity.name.split("/")[1])
    others = [runner for number, runner in runners.items() if number != leader]
    for each in others:
        wait_until(lambda each=each: len(each._rows._waiting) == 1)

    others[0].drain()
    finished(others[0])
    model.answer(inference.id)
    finished(runners[leader])
    finished(others[1])
    assert len(model.submitted) == 1


# -- with an earlier job


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
            job = tx.jobs.fetch(job.id)
        assert cut_job(store, job) > 0
        while writer.write_next():
            pass

    return write


@pytest.fixture
def run_job(store, model, write_input, run, write_parts, tmp_path) -> Callable[..., Job]:
    model.echo = True

    def run_all(lines: Sequence[str], *, earlier: Job | None = None, shards: int = 1, **spec: object) -> Job:
        write_input(lines)
        output = (tmp_path / new_id("out")).as_uri()
        named = {} if earlier is None else {"reuse": earlier.id, "reused_job": earlier.id}
        job = plan_bulk(store, INPUT, shards=shards, output=output, **named, **spec)
        for _ in range(shards):
            finished(run(claim_bulk(store)))
        write_parts(job)
        model.submitted.clear()
        return job

    return run_all


def run_again(store, model, write_input, run, tmp_path, lines: Sequence[str], earlier: Job, **spec) -> Job:
    model.echo = True
    write_input(lines)
    job = plan_bulk(
        store,
        INPUT,
        output=(tmp_path / new_id("out")).as_uri(),
        reuse=earlier.id,
        reused_job=earlier.id,
        **spec,
    )
    finished(run(claim_bulk(store)))
    return job


def test_only_rows_that_changed_are_run_again(
    store, objects, model, write_input, run, run_job, tmp_path
) -> None:
    earlier = run_job([batch_line(n, f"text {n}") for n in range(100)])
    lines = [batch_line(1000 + n, f"text {n}" if n not in (7, 42, 99) else f"new {n}") for n in range(100)]
    job = run_again(store, model, write_input, run, tmp_path, lines[::-1], earlier)

    assert prompts(model) == ["new 42", "new 7", "new 99"]
    results = by_id(results_of(store, objects, job))
    assert len(results) == 100
    assert text_of(results["r1003"]) == "TEXT 3"
    assert reused(store, job) == 97


def test_a_third_run_reuses_what_the_second_reused(store, model, write_input, run, run_job, tmp_path) -> None:
    first = run_job([batch_line(n, f"text {n}") for n in range(10)])
    second = run_job([batch_line(n, f"text {n}") for n in range(10)], earlier=first)
    run_again(
        store, model, write_input, run, tmp_path, [batch_line(n, f"text {n}") for n in range(11)], second
    )

    assert prompts(model) == ["text 10"]


def test_failed_rows_are_run_again(store, objects, model, write_input, run, run_job, tmp_path) -> None:
    model.refuses = "text 1"
    earlier = run_job([batch_line(n, f"text {n}") for n in range(3)])
    model.refuses = None
    run_again(
        store, model, write_input, run, tmp_path, [batch_line(n, f"text {n}") for n in range(3)], earlier
    )

    assert prompts(model) == ["text 1"]


@pytest.mark.parametrize("lost", ["digests", "segments", "damaged digests", "damaged segments"])
def test_results_that_are_gone_are_computed_again(
    store, objects, model, write_input, run, run_job, tmp_path, lost: str
) -> None:
    earlier = run_job([batch_line(n, f"text {n}") for n in range(3)])
    for info in list(objects.list(f"{lost.split()[-1]}/")):
        if lost.startswith("damaged"):
            objects.put(info.key, b"x" + objects.read(info.key)[1:])
        else:
            objects.delete(info.key)
    lines = [batch_line(n, f"text {n}") for n in range(3)]
    job = run_again(store, model, write_input, run, tmp_path, lines, earlier)

    assert len(prompts(model)) == 3
    assert shard_of(store, job).state is ShardState.DONE


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), StorageUnavailable("away")])
def test_rows_wait_while_earlier_results_cannot_be_looked_up(
    model, run_job, write_input, run, store, tmp_path, monkeypatch, error: Exception
) -> None:
    monkeypatch.setattr(reading, "fault_delay_s", lambda faults, key: 0.01)
    earlier = run_job([batch_line(n, f"text {n}") for n in range(3)])
    errors = [error, error]
    find = EarlierResults.find

    def failing(results: EarlierResults, *args: object) -> object:
        if errors:
            raise errors.pop()
        return find(results, *args)

    monkeypatch.setattr(EarlierResults, "find", failing)
    lines = [batch_line(n, f"text {n}") for n in range(3)]
    run_again(store, model, write_input, run, tmp_path, lines, earlier)

    assert errors == []
    assert prompts(model) == []


def test_another_tenants_results_are_not_reused(
    store, objects, model, write_input, run, run_job, dependencies: ShardDependencies, tmp_path
) -> None:
    earlier = run_job([batch_line(0, "text")])
    job = run_again(store, model, write_input, run, tmp_path, [batch_line(0, "text")], earlier)
    assert prompts(model) == []

    assert dependencies.earlier_jobs.reused_by(replace(job_of(store, job), tenant_id="other")) is None


def test_another_revision_of_the_model_has_other_digests(
    store, objects, model, write_input, run, run_job, tmp_path
) -> None:
    earlier = run_job([batch_line(0, "text")])
    model.model = replace(model.model, revision="r2")
    run_again(store, model, write_input, run, tmp_path, [batch_line(0, "text")], earlier)

    assert prompts(model) == ["text"]


def test_results_of_many_shards_are_found(store, objects, model, write_input, run, run_job, tmp_path) -> None:
    earlier = run_job(
        [batch_line(n, f"text {n}") for n in range(30)], shards=2, parts=PartOptions(part_rows=30)
    )
    assert len(list(objects.list(folder(TENANT, earlier.id)))) == 2
    lines = [batch_line(n, f"text {n}") for n in range(31)]
    run_again(store, model, write_input, run, tmp_path, lines, earlier)

    assert prompts(model) == ["text 30"]


def job_of(store: Store, job: Job) -> Job:
    with store.snapshot() as tx:
        return tx.jobs.fetch(job.id)
