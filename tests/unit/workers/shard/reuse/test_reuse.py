"""Rows with the same request share their answer: within a job, and with an earlier job that is named."""

import json
from dataclasses import replace

import pytest

from nightshift.bulk.results.digest_files import folder
from nightshift.bulk.results.earlier_results import EarlierResults
from nightshift.errors import DatabaseUnavailable, StorageUnavailable
from nightshift.jobs import ShardState
from tests.unit.workers.scripted import TENANT, chat_body
from tests.unit.workers.shard.helpers import CONFIG, Ground, batch_line, finished, wait_until
from tests.unit.workers.shard.reuse.reusing import (
    RunJob,
    numbered,
    prompts,
    same,
    text_of,
)
from workers.shard.run_once import ENTRY_BYTES, RunOnce

# -- within a job


def test_rows_with_the_same_request_are_run_once_and_each_has_its_own_result(ground: Ground) -> None:
    lines = [batch_line(n, f"text {n % 2}", doc=n) for n in range(6)]
    runner = ground.run(lines, spec={"keep_columns": ("doc",)})
    ground.answer(*ground.begun(2))
    finished(runner)

    assert prompts(ground) == ["text 0", "text 1"]
    results = ground.by_id
    assert {id: text_of(result) for id, result in results.items()} == {
        f"r{n}": f"TEXT {n % 2}" for n in range(6)
    }
    assert {id: json.loads(result.kept or "") for id, result in results.items()} == {
        f"r{n}": {"doc": n} for n in range(6)
    }
    assert len({result.body["id"] for result in results.values()}) == 6
    assert sum(result.is_reused for result in results.values()) == ground.recorded.rows_reused == 4
    assert (ground.state, ground.shard.rows_done) == (ShardState.DONE, 6)


def test_a_row_after_the_answer_is_there_has_it_at_once(ground: Ground) -> None:
    ground.model.echo = True
    finished(ground.run(same(50)))

    assert prompts(ground) == ["same"]
    assert (len(ground.by_id), ground.recorded.rows_reused) == (50, 49)


def test_shards_of_one_job_share_and_other_jobs_do_not(ground: Ground) -> None:
    ground.model.echo = True
    ground.plan(same(1), shards=3)
    for _ in range(3):
        finished(ground.lease())
    assert prompts(ground) == ["same"]

    finished(ground.run(same(1)))
    assert prompts(ground) == ["same", "same"]


def test_each_of_two_workers_runs_a_request_once_for_all_its_shards(ground: Ground) -> None:
    ground.model.echo = True
    ground.plan(same(3), shards=4)
    workers = [RunOnce(), RunOnce()]
    for once in [*workers, *workers]:
        finished(ground.lease(once=once))

    assert prompts(ground) == ["same", "same"]
    assert ground.recorded.rows_reused == 4 * 3 - 2


@pytest.mark.parametrize(("texts", "times"), [(["same", "same"], 1), (["same", "other", "same"], 2)])
def test_a_request_is_run_again_once_others_have_taken_its_answers_place(
    ground: Ground, texts: list[str], times: int
) -> None:
    ground.model.echo = True
    forgetful = RunOnce(known_bytes_max=2 * ENTRY_BYTES - 1)  # has one answer
    lines = [batch_line(n, text) for n, text in enumerate(texts)]
    finished(ground.run(lines, replace(CONFIG, rows_in_flight_max=1), once=forgetful))

    assert prompts(ground).count("same") == times


def test_what_is_drawn_at_random_is_run_for_each_row_unless_it_is_to_be_shared(ground: Ground) -> None:
    ground.model.echo = True
    lines = [batch_line(n, body=chat_body("same", temperature=0.7)) for n in range(3)]
    finished(ground.run(lines))
    assert len(prompts(ground)) == 3

    finished(ground.run(lines, spec={"reuse_sampled": True}))
    assert len(prompts(ground)) == 4


def test_a_row_whose_twin_fails_is_run_itself(ground: Ground) -> None:
    runner = ground.run(same(3))
    for _ in range(3):
        [first] = ground.begun(1)
        assert first.identity.name.endswith("/0")
        ground.model.fail(first.id, "the logits are not finite")
    ground.answer(*ground.begun(2))
    finished(runner)

    results = ground.by_id
    assert [results[f"r{n}"].status_code for n in range(3)] == [500, 200, 200]
    assert ground.recorded.rows_reused == 0


def test_a_row_whose_twin_was_lost_with_its_lease_is_run_itself(ground: Ground) -> None:
    first = ground.run(same(1), spec={"shards": 3})
    ground.begun(1)
    others = [ground.lease(), ground.lease()]
    for other in others:
        wait_until(lambda other=other: other._rows.num_waiting == 1)

    first.lease_lost()
    finished(first)
    [inference] = [left for left in ground.begun(1) if left.identity.name.endswith("/1/0")]
    ground.answer(inference)
    for other in others:
        finished(other)

    assert (len(ground.results), len(ground.model.submitted)) == (2, 2)


def test_a_shard_that_leaves_does_not_keep_its_twin_waiting(ground: Ground) -> None:
    """It waits for the answer, and is drained before that comes."""
    leader = ground.run(same(1), spec={"shards": 3})
    [inference] = ground.begun(1)
    others = [ground.lease(), ground.lease()]
    for other in others:
        wait_until(lambda other=other: other._rows.num_waiting == 1)

    others[0].drain()
    finished(others[0])
    ground.answer(inference)
    finished(leader)
    finished(others[1])
    assert len(ground.model.submitted) == 1


# -- with an earlier job


def test_only_rows_that_changed_are_run_again(ground: Ground, run_job: RunJob) -> None:
    earlier = run_job(numbered(100))
    lines = [batch_line(1000 + n, f"text {n}" if n not in (7, 42, 99) else f"new {n}") for n in range(100)]
    job = run_job(lines[::-1], earlier)

    assert prompts(ground) == ["new 42", "new 7", "new 99"]
    assert (len(ground.by_id), job.rows_reused) == (100, 97)
    assert text_of(ground.by_id["r1003"]) == "TEXT 3"

    run_job([*lines, *numbered(1), batch_line(0, "one more")], job)
    assert prompts(ground) == ["one more"], "a third run reuses what the second reused"


@pytest.mark.parametrize("change", ["failed", "another revision"])
def test_rows_that_failed_or_ran_on_another_revision_are_run_again(
    ground: Ground, run_job: RunJob, change: str
) -> None:
    """Results of many parts are found."""
    ground.model.refuses = "text 1" if change == "failed" else None
    earlier = run_job(numbered(3), shards=2, part_rows=3)
    assert len(list(ground.objects.list(folder(TENANT, earlier.id)))) == 2
    ground.model.refuses = None
    if change == "another revision":
        ground.model.model = replace(ground.model.model, revision="r2")
    run_job(numbered(3), earlier)

    assert prompts(ground) == (["text 1"] if change == "failed" else [f"text {n}" for n in range(3)])


@pytest.mark.parametrize("lost", ["digests", "segments", "damaged digests", "damaged segments"])
def test_results_that_are_gone_are_computed_again(ground: Ground, run_job: RunJob, lost: str) -> None:
    earlier = run_job(numbered(3))
    for info in list(ground.objects.list(f"{lost.split()[-1]}/")):
        if lost.startswith("damaged"):
            ground.objects.put(info.key, b"x" + ground.objects.read(info.key)[1:])
        else:
            ground.objects.delete(info.key)
    run_job(numbered(3), earlier)

    assert len(prompts(ground)) == 3
    assert ground.state is ShardState.DONE


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), StorageUnavailable("away")])
def test_rows_wait_while_earlier_results_cannot_be_looked_up(
    ground: Ground, run_job: RunJob, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    earlier = run_job(numbered(3))
    errors, find = [error, error], EarlierResults.find

    def failing(results: EarlierResults, *args: object) -> object:
        if errors:
            raise errors.pop()
        return find(results, *args)

    monkeypatch.setattr(EarlierResults, "find", failing)
    run_job(numbered(3), earlier)

    assert errors == []
    assert prompts(ground) == []


def test_another_tenants_results_are_not_reused(ground: Ground, run_job: RunJob) -> None:
    job = run_job(numbered(1), run_job(numbered(1)))
    assert prompts(ground) == []

    earlier_jobs = ground.dependencies.earlier_jobs
    assert earlier_jobs.reused_by(job) is not None
    assert earlier_jobs.reused_by(replace(job, tenant_id="other")) is None
