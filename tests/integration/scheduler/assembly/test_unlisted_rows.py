"""Rows that a job never ran have a line each, up to a limit of their file; the others are counted."""

import gzip
import json

import pytest

from nightshift.bulk.results import output_rows as shard_rows
from nightshift.bulk.results.output_rows import FULL_LISTINGS, NOT_RUN_LINES_MAX
from nightshift.jobs import Job, JobState, StopReason
from nightshift.lifecycle.controls import pause
from tests.helpers.fakes import MODEL, claimed
from tests.integration.scheduler.assembly.conftest import (
    TEXTS,
    a_batch,
    a_native_job,
    assembled,
    give_up,
    planned,
    stop,
    stop_in_the_middle,
)
from tests.integration.scheduler.scheduling import TEMPLATE, Place
from tests.integration.store.watching import request_stop

LINES_MAX = 3


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_rows, "NOT_RUN_LINES_MAX", LINES_MAX)
    monkeypatch.setattr(shard_rows, "MISSING_MAX", 2)


def never_read(place: Place, job: Job, reason: StopReason) -> None:
    stop(place, job, reason)


def paused_and_then_stopped(place: Place, job: Job, reason: StopReason) -> None:
    place.work_off(shards=1)
    with place.store.transaction() as tx:
        pause(tx, place.job(job), tx.now())
    stop(place, job, reason)


# `make test` takes each reason once.
TAKEN = set(zip((stop_in_the_middle, never_read, paused_and_then_stopped), StopReason, strict=True))
STOPS = [
    pytest.param(how, reason, marks=() if (how, reason) in TAKEN else pytest.mark.exhaustive)
    for how in (stop_in_the_middle, never_read, paused_and_then_stopped)
    for reason in StopReason
]


@pytest.mark.parametrize(("how", "reason"), STOPS)
def test_a_batchs_lines_and_the_rows_that_have_none_are_all_of_its_rows(
    place: Place, few_lines: None, how: object, reason: StopReason
) -> None:
    job = a_batch(place, TEXTS)
    how(place, job, reason)  # type: ignore[operator]
    ended = assembled(place, job)

    good = place.file_lines(ended, ended.output_file_id) if ended.output_file_id else []
    missing = place.file_lines(ended, ended.error_file_id)
    assert ended.state == JobState(reason.value)
    assert len(missing) == LINES_MAX
    assert ended.rows_unlisted > 0
    assert len(good) + len(missing) + ended.rows_unlisted == ended.counts.total == 12
    assert (ended.counts.succeeded, ended.counts.failed) == (len(good), 12 - len(good))


@pytest.mark.parametrize(("how", "reason"), STOPS)
def test_a_native_jobs_manifest_says_how_many_rows_have_no_line(
    place: Place, few_lines: None, how: object, reason: StopReason
) -> None:
    job = a_native_job(place, TEXTS * 3)
    how(place, job, reason)  # type: ignore[operator]
    ended = assembled(place, job)

    manifest = json.loads(place.out("_manifest.json"))
    good, missing = place.part_lines("part"), place.part_lines("errors")
    unlisted = manifest["unlisted"]["rows"]
    assert len(good) + len(missing) + unlisted == 36
    assert unlisted == ended.rows_unlisted > 0
    assert (ended.state, manifest["status"]) == (reason.final_state, reason.final_state)
    assert not (place.bucket / "out" / "_SUCCESS").exists()
    assert manifest["counts"] == {"total": 36, "succeeded": len(good), "failed": 36 - len(good)}
    assert sum(file["rows"] for file in manifest["errors"]) == 36 - len(good)
    assert len(missing) <= LINES_MAX * len(manifest["errors"])


def test_parquet_has_as_many_rows_of_them_as_jsonl_has_lines(place: Place, few_lines: None) -> None:
    job = a_native_job(place, TEXTS, format="parquet")
    stop(place, job, StopReason.CANCELLED)
    ended = assembled(place, job)

    [errors] = json.loads(place.out("_manifest.json"))["errors"]
    assert (errors["rows"], errors["unlisted"], ended.counts.total) == (12, 12 - LINES_MAX, 12)


def test_what_is_kept_of_the_rows_counts_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_rows, "NOT_RUN_CHARS_MAX", 100)
    job = a_native_job(place, ["x" * 60] * 12, keep_columns=["text"])
    stop(place, job, StopReason.CANCELLED)
    ended = assembled(place, job)

    assert len(place.part_lines("errors")) == 2, "the second goes over the limit"
    assert ended.rows_unlisted == 10


def test_a_shard_that_was_given_up_has_no_more_lines_than_a_job_that_was_stopped(
    place: Place, few_lines: None
) -> None:
    job = a_batch(place, ["a"] * 40)
    lost = claimed(place.store)
    give_up(place, lost)
    place.work_off()
    ended = assembled(place, job)

    missing = place.file_lines(ended, ended.error_file_id)
    good = place.file_lines(ended, ended.output_file_id)
    assert len(good) + len(missing) + ended.rows_unlisted == 40
    assert len(missing) <= LINES_MAX


@pytest.mark.exhaustive
def test_a_packed_input_of_many_tiny_lines_becomes_no_mass_of_error_lines(place: Place) -> None:
    rows = NOT_RUN_LINES_MAX + 10_000
    (place.bucket / "in.jsonl.gz").write_bytes(gzip.compress(b'{"text":1}\n' * rows))
    job = planned(place, place.native(name="in.jsonl.gz", template=TEMPLATE, model=MODEL))
    assert request_stop(place.store, job, StopReason.CANCELLED)
    ended = assembled(place, job)

    assert (ended.state, ended.counts.total, ended.counts.failed) == (JobState.CANCELLED, rows, rows)
    assert len(place.part_lines("errors")) == NOT_RUN_LINES_MAX
    assert ended.rows_unlisted == 10_000


def test_small_parts_bring_no_more_lines(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant chooses the size of parts, and so their number."""
    monkeypatch.setattr(shard_rows, "NOT_RUN_LINES_MAX", 8)
    job = a_native_job(place, TEXTS * 30, part_rows=1)
    stop(place, job, StopReason.CANCELLED)
    ended = assembled(place, job)

    lines, parts = len(place.part_lines("errors")), len(place.part_names("errors"))
    assert parts > 20
    assert lines + ended.rows_unlisted == ended.counts.total == 360
    assert lines < 5 * FULL_LISTINGS * 8 < 360, "the sum of shares grows as the logarithm of the parts"


def test_without_more_rows_than_the_limit_every_row_has_its_line(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_rows, "MISSING_MAX", 2)  # held at a time
    job = a_batch(place, TEXTS)
    stop_in_the_middle(place, job, StopReason.EXPIRED)
    ended = assembled(place, job)

    assert ended.rows_unlisted == 0
    assert len(place.file_lines(ended, ended.error_file_id)) == ended.counts.failed
