"""Rows with the same request share their answer: within a job, and with an earlier job that is named."""

import json
from dataclasses import replace

import pytest

from nightshift.bulk.results.digest_files import folder
from nightshift.bulk.results.earlier_results import EarlierResults
from nightshift.errors import DatabaseUnavailable, StorageUnavailable
from nightshift.jobs import ShardState
from tests.unit.workers.scripted import TENANT, chat_body, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import (
    CONFIG,
    INPUT,
    batch_line,
    by_id,
    finished,
    results_of,
    shard_of,
    wait_until,
)
from tests.unit.workers.shard.reuse.reusing import (
    RunJob,
    numbered,
    prompts,
    reused,
    text_of,
)
from workers.shard.config import ShardDependencies
from workers.shard.run_once import ENTRY_BYTES, RunOnce

# -- within a job


def test_rows_with_the_same_request_are_run_once_and_each_has_its_own_result(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(n, f"text {n % 2}", doc=n) for n in range(6)])
    job = plan_bulk(store, INPUT, keep_columns=("doc",))
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


def test_each_of_two_workers_runs_a_request_once_for_all_its_shards(
    store, objects, model, write_input, run, dependencies: ShardDependencies
) -> None:
    model.echo = True
    write_input([batch_line(n, "same") for n in range(3)])
    job = plan_bulk(store, INPUT, shards=4)
    workers = [replace(dependencies, once=RunOnce()) for _ in range(2)]
    for worker in [*workers, *workers]:
        finished(run(claim_bulk(store), dependencies=worker))

    assert prompts(model) == ["same", "same"]
    assert reused(store, job) == 4 * 3 - 2


@pytest.mark.parametrize(("texts", "times"), [(["same", "same"], 1), (["same", "other", "same"], 2)])
def test_a_request_is_run_again_once_others_have_taken_its_answers_place(
    store, model, write_input, run, dependencies: ShardDependencies, texts: list[str], times: int
) -> None:
    model.echo = True
    write_input([batch_line(n, text) for n, text in enumerate(texts)])
    plan_bulk(store, INPUT)
    one_row_at_a_time = replace(CONFIG, rows_in_flight_max=1)
    forgetful = replace(dependencies, once=RunOnce(known_bytes_max=2 * ENTRY_BYTES - 1))  # has one answer
    finished(run(claim_bulk(store), one_row_at_a_time, forgetful))

    assert prompts(model).count("same") == times


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
    for other in model.wait_for(2):
        model.answer(other.id)
    finished(runner)

    results = by_id(results_of(store, objects, job))
    assert [results[f"r{n}"].status_code for n in range(3)] == [500, 200, 200]
    assert reused(store, job) == 0


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
    """It waits for the answer, and is drained before that comes."""
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


def test_only_rows_that_changed_are_run_again(store, objects, model, run_job: RunJob) -> None:
    earlier = run_job(numbered(100))
    lines = [batch_line(1000 + n, f"text {n}" if n not in (7, 42, 99) else f"new {n}") for n in range(100)]
    job = run_job(lines[::-1], earlier)

    assert prompts(model) == ["new 42", "new 7", "new 99"]
    results = by_id(results_of(store, objects, job))
    assert len(results) == 100
    assert text_of(results["r1003"]) == "TEXT 3"
    assert reused(store, job) == 97


def test_a_third_run_reuses_what_the_second_reused(model, run_job: RunJob) -> None:
    second = run_job(numbered(10), run_job(numbered(10)))
    run_job(numbered(11), second)

    assert prompts(model) == ["text 10"]


def test_failed_rows_are_run_again(model, run_job: RunJob) -> None:
    model.refuses = "text 1"
    earlier = run_job(numbered(3))
    model.refuses = None
    run_job(numbered(3), earlier)

    assert prompts(model) == ["text 1"]


@pytest.mark.parametrize("lost", ["digests", "segments", "damaged digests", "damaged segments"])
def test_results_that_are_gone_are_computed_again(store, objects, model, run_job: RunJob, lost: str) -> None:
    earlier = run_job(numbered(3))
    for info in list(objects.list(f"{lost.split()[-1]}/")):
        if lost.startswith("damaged"):
            objects.put(info.key, b"x" + objects.read(info.key)[1:])
        else:
            objects.delete(info.key)
    job = run_job(numbered(3), earlier)

    assert len(prompts(model)) == 3
    assert shard_of(store, job).state is ShardState.DONE


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), StorageUnavailable("away")])
def test_rows_wait_while_earlier_results_cannot_be_looked_up(
    model, run_job: RunJob, monkeypatch, error: Exception
) -> None:
    earlier = run_job(numbered(3))
    errors = [error, error]
    find = EarlierResults.find

    def failing(results: EarlierResults, *args: object) -> object:
        if errors:
            raise errors.pop()
        return find(results, *args)

    monkeypatch.setattr(EarlierResults, "find", failing)
    run_job(numbered(3), earlier)

    assert errors == []
    assert prompts(model) == []


def test_another_tenants_results_are_not_reused(
    model, run_job: RunJob, dependencies: ShardDependencies
) -> None:
    job = run_job(numbered(1), run_job(numbered(1)))
    assert prompts(model) == []

    assert dependencies.earlier_jobs.reused_by(job) is not None
    assert dependencies.earlier_jobs.reused_by(replace(job, tenant_id="other")) is None


def test_another_revision_of_the_model_has_other_digests(model, run_job: RunJob) -> None:
    earlier = run_job(numbered(1))
    model.model = replace(model.model, revision="r2")
    run_job(numbered(1), earlier)

    assert prompts(model) == ["text 0"]


def test_results_of_many_parts_are_found(objects, model, run_job: RunJob) -> None:
    earlier = run_job(numbered(30), shards=2, part_rows=30)
    assert len(list(objects.list(folder(TENANT, earlier.id)))) == 2
    run_job(numbered(31), earlier)

    assert prompts(model) == ["text 30"]
