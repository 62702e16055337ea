"""Retries: a job over the rows of another that did not succeed, from its plan to its output."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from nightshift.jobs import Job, JobState, StopReason
from nightshift.jobs.files import retry_input_id
from nightshift.lifecycle import retry, transitions
from nightshift.lifecycle.controls import delete_job
from nightshift.store import Store, tables
from tests.helpers.fakes import FakeClock, a_new_job
from tests.integration.scheduler.assembly.conftest import (
    TEXTS,
    a_batch,
    a_native_job,
    assembled,
    ids,
    planned,
    stop,
)
from tests.integration.scheduler.scheduling import Place, echoed, lines_of


def retry_of(place: Place, old: Job) -> Job:
    """A retry is accepted; its input has not been written."""
    with place.store.transaction() as tx:
        new_job = a_new_job(face=old.face, spec=old.spec)
        new = retry.as_retry(tx, new_job, old, has_own_output=False, has_own_webhook=False)
        return transitions.submit_bulk(tx, new, tx.now()).job


def part_lines(place: Place, folder: str) -> list[dict[str, object]]:
    parts = sorted((place.bucket / "out" / folder).glob("part-*"))
    return [line for part in parts for line in lines_of(part.read_bytes())]


def test_a_native_jobs_failed_rows_are_run_again_beside_its_output(place: Place) -> None:
    old = a_native_job(place, [*TEXTS, "bad", "good", "bad"])
    place.work_off()
    old = assembled(place, old)
    before = part_lines(place, "")
    failed = [line["custom_id"] for line in place.part_lines("errors")]

    new = planned(place, retry_of(place, old))
    place.work_off(lambda request: (200, {"again": request.body["messages"][0]["content"]}))
    ended = assembled(place, new)

    lines = part_lines(place, f"retries/{new.id}")
    assert (ended.state, ended.retry_of, ended.counts.total, ended.counts.failed) == (
        "succeeded",
        old.id,
        2,
        0,
    )
    assert [line["custom_id"] for line in lines] == failed
    assert all(line["response"]["body"] == {"again": "bad"} for line in lines)
    assert part_lines(place, "") == before


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.EXPIRED])
def test_a_batchs_rows_that_were_never_run_are_run_too(place: Place, reason: StopReason) -> None:
    old = a_batch(place, ["bad", *TEXTS])
    place.work_off(shards=1)
    stop(place, old, reason)
    old = assembled(place, old)
    missing = ids(place.file_lines(old, old.error_file_id))

    new = planned(place, retry_of(place, old))
    place.work_off()
    ended = assembled(place, new)

    done = ids(place.file_lines(ended, ended.output_file_id))
    assert place.job(new).counts.total == len(missing)
    assert [*ids(place.file_lines(ended, ended.error_file_id)), *done] == missing


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (lambda path: path.write_text('{"text": "another"}\n{"text": "and one more"}\n'), "input_changed"),
        (Path.unlink, "object_not_found"),
    ],
    ids=["replaced", "gone"],
)
def test_an_input_that_is_not_the_one_it_was_is_not_run_and_is_named(
    place: Place, happens: Callable[[Path], object], code: str
) -> None:
    old = a_native_job(place, ["bad", "good"])
    place.work_off()
    old = assembled(place, old)
    happens(place.bucket / "in.jsonl")

    ended = place.plan(retry_of(place, old))

    assert (ended.state, [error.code for error in ended.errors]) == (JobState.FAILED, [code])
    assert "in.jsonl" in ended.errors[0].message


def test_a_job_that_was_deleted_meanwhile_is_not_retried(place: Place) -> None:
    old = assembled(place, a_batch(place, ["bad"]))
    new = retry_of(place, replace(old, id="job_deleted"))

    assert [error.code for error in place.plan(new).errors] == ["retried_job_gone"]


def test_rows_whose_results_are_being_deleted_do_not_count_as_never_run(place: Place) -> None:
    old = a_native_job(place, ["bad", "good"])
    place.work_off()
    old = assembled(place, old)
    with place.store.database.write() as connection:
        first = select(func.min(tables.segment.c.id)).scalar_subquery()
        connection.execute(tables.segment.delete().where(tables.segment.c.id == first))

    ended = place.plan(retry_of(place, old))

    assert [error.code for error in ended.errors] == ["retried_job_gone"]


def test_lines_that_never_were_a_request_are_left_out(place: Place) -> None:
    (place.bucket / "in.jsonl").write_text('not JSON\n{"text": "bad"}\n{"other": 1}\n')
    old = planned(place, place.native(model="demo", template={"model": "demo", "messages": "{{text}}"}))
    place.work_off(lambda request: (400, {"error": {"code": "x", "message": "y"}}))
    old = assembled(place, old)
    assert old.counts.failed == 3

    assert planned(place, retry_of(place, old)).rows_estimated == 1


def test_without_any_request_there_is_nothing_to_run(place: Place) -> None:
    (place.bucket / "in.jsonl").write_text('{"id": null, "text": "a"}\n')
    records = {"template": {"model": "demo", "messages": "{{text}}"}, "id_column": "id"}
    old = planned(place, place.native(model="demo", **records))
    place.work_off()
    old = assembled(place, old)

    ended = place.plan(retry_of(place, old))

    assert [error.code for error in ended.errors] == ["empty_input"]
    with place.store.snapshot() as tx:
        assert tx.files.list("default", tx.now(), limit=10) == []


def test_an_input_that_is_written_is_not_written_again(place: Place) -> None:
    """Its scheduler was lost between writing it and planning the job."""
    old = a_native_job(place, ["bad"])
    place.work_off()
    old = assembled(place, old)
    new = retry_of(place, old)
    duty = place.planning()
    duty._retries.write(new, lambda: True)
    (place.bucket / "in.jsonl").unlink()

    assert planned(place, new).planned_at is not None


def test_a_retry_can_be_retried(place: Place, store: Store) -> None:
    old = a_native_job(place, ["bad", "good"])
    place.work_off()
    old = assembled(place, old)
    first = planned(place, retry_of(place, old))
    place.work_off(echoed)
    first = assembled(place, first)
    second = planned(place, retry_of(place, first))

    with store.snapshot() as tx:
        assert list(tx.jobs.retries("default", old.id, 10)) == [first.id]
        assert list(tx.jobs.retries("default", first.id, 10)) == [second.id]


@pytest.mark.parametrize(("face", "is_kept"), [("native", False), ("openai", True)])
def test_the_input_of_a_retry_goes_with_it_unless_it_is_a_batchs(
    place: Place, clock: FakeClock, face: str, is_kept: bool
) -> None:
    make = a_native_job if face == "native" else a_batch
    old = make(place, [*TEXTS, "bad"])
    place.work_off()
    new = planned(place, retry_of(place, assembled(place, old)))
    place.work_off()
    ended = assembled(place, new)

    with place.store.transaction() as tx:
        assert delete_job(tx, ended, tx.now())

    with place.store.snapshot() as tx:
        assert (tx.files.get("default", retry_input_id(new.id), clock.now) is not None) == is_kept
