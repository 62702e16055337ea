"""Whatever became of a batch's rows, its files have one line for each, or it says that they have not."""

import gzip
from datetime import timedelta

import pytest

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import JobState, StopReason
from nightshift.lifecycle.recovery import release_worker
from tests.helpers.fakes import FakeClock, claimed, completed
from tests.integration.scheduler.assembly.conftest import (
    TEXTS,
    a_batch,
    assembled,
    give_up,
    ids,
    planned,
    stop,
    stop_in_the_middle,
)
from tests.integration.scheduler.scheduling import Place, a_line, jsonl
from tests.integration.store.watching import stop_held


def test_a_batch_ends_with_a_file_of_answers_in_input_order_and_one_of_failed_rows(place: Place) -> None:
    job = a_batch(place, ["bad", *TEXTS])
    place.work_off()
    ended = assembled(place, job)
    lines = place.file_lines(ended, ended.output_file_id)
    assert ended.state is JobState.SUCCEEDED
    assert ids(lines) == [f"r{number}" for number in range(1, 13)]
    assert [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines] == TEXTS
    [error] = place.file_lines(ended, ended.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("r0", 400)
    assert (ended.counts.total, ended.counts.succeeded, ended.counts.failed) == (13, 12, 1)


def test_a_batch_of_which_every_row_failed_is_complete_and_has_no_output_file(place: Place) -> None:
    job = a_batch(place, ["bad"] * 3)
    place.work_off()
    ended = assembled(place, job)
    assert (ended.state, ended.output_file_id, ended.counts.failed) == (JobState.SUCCEEDED, None, 3)
    assert ids(place.file_lines(ended, ended.error_file_id)) == ["r0", "r1", "r2"]


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.EXPIRED, StopReason.FAILED])
def test_rows_that_were_not_run_get_a_line_that_says_why(place: Place, reason: StopReason) -> None:
    job = a_batch(place, TEXTS)
    stop_in_the_middle(place, job, reason)

    ended = assembled(place, job)
    good = place.file_lines(ended, ended.output_file_id)
    missing = place.file_lines(ended, ended.error_file_id)
    assert ended.state == JobState(reason.value)
    assert sorted(ids(good) + ids(missing)) == sorted(f"r{number}" for number in range(12))
    assert {(line["error"]["code"], line["response"]) for line in missing} == {(f"batch_{reason}", None)}
    as_openai_says = "This request could not be executed before the completion window expired."
    assert (missing[0]["error"]["message"] == as_openai_says) == (reason is StopReason.EXPIRED)
    assert (ended.counts.succeeded, ended.counts.failed) == (len(good), len(missing))
    assert len({line["id"] for line in good + missing}) == 12


def test_a_shard_that_was_given_up_costs_its_rows_and_not_the_batch(place: Place) -> None:
    job = a_batch(place, TEXTS)
    lost = claimed(place.store)
    place.commit(lost, 0, place.results(lost)[:1])
    give_up(place, lost)
    place.work_off()

    ended = assembled(place, job)
    missing = place.file_lines(ended, ended.error_file_id)
    assert ended.state is JobState.SUCCEEDED
    assert {line["error"]["code"] for line in missing} == {"shard_given_up"}
    assert ended.counts.succeeded + len(missing) == 12


def test_rows_that_may_run_only_once_say_that_they_were_interrupted(place: Place) -> None:
    job = a_batch(place, TEXTS, retry_on_interrupt=False)
    lost = claimed(place.store)
    place.commit(lost, 0, place.results(lost)[:1])
    with place.store.transaction() as tx:
        assert release_worker(tx, lost.lease.worker_id, 20, tx.now(), ExitCause.KILLED).given_up == 1
    place.work_off()

    ended = assembled(place, job)
    missing = place.file_lines(ended, ended.error_file_id)
    assert ended.state is JobState.SUCCEEDED
    assert {line["error"]["code"] for line in missing} == {"interrupted"}
    assert ended.counts.succeeded + len(missing) == 12


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_batch_no_part_of_which_could_be_run_has_failed_or_shares_its_jobs_fate(
    place: Place, is_cancelled: bool
) -> None:
    job = a_batch(place, ["one row, one shard"])
    lost = claimed(place.store)
    if is_cancelled:
        stop(place, job, StopReason.CANCELLED)
    give_up(place, lost)
    ended = assembled(place, job)
    [line] = place.file_lines(ended, ended.error_file_id)
    if is_cancelled:
        assert (ended.state, line["error"]["code"]) == (JobState.CANCELLED, "batch_cancelled")
    else:
        assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "interrupted")


def test_a_batch_cancelled_before_its_file_was_read_has_no_files(place: Place) -> None:
    job = place.batch(jsonl([a_line("a")]))
    stop(place, job, StopReason.CANCELLED)
    ended = assembled(place, job)
    assert (ended.state, ended.output_file_id, ended.error_file_id) == (JobState.CANCELLED, None, None)
    assert ended.counts.total == 0


def test_of_a_row_with_two_results_the_first_one_committed_counts(place: Place) -> None:
    job = a_batch(place, ["first"])
    claim = claimed(place.store)
    place.commit(claim, 0, place.results(claim))
    place.commit(claim, 1, place.results(claim, lambda request: (200, {"choices": []})))
    stop(place, job, StopReason.CANCELLED)
    stop_held(place.store, claim.lease)
    ended = assembled(place, job)
    [line] = place.file_lines(ended, ended.output_file_id)
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "first"
    assert (ended.counts.total, ended.counts.succeeded) == (1, 1)


def test_rows_that_do_not_add_up_end_the_batch_as_failed_and_loudly(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    job = a_batch(place, ["a", "b"])
    claim = claimed(place.store)
    place.commit(claim, 0, place.results(claim)[:1])
    completed(place.store, claim.lease, rows_total=1)  # one row short of what was validated
    place.work_off()
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "row_count_mismatch")
    assert (ended.output_file_id, ended.counts.total) == (None, 2)
    assert "do not add up" in caplog.text


def test_a_segment_that_is_gone_ends_the_batch_as_failed(place: Place) -> None:
    job = a_batch(place, TEXTS)
    place.work_off()
    place.objects.delete(next(place.objects.list("segments/")).key)
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "object_not_found")


def test_output_files_expire_when_the_batch_says(place: Place, clock: FakeClock) -> None:
    job = a_batch(place, ["a"], output_expires_after_s=3600)
    place.work_off()
    ended = assembled(place, job)
    assert ended.output_file_id is not None
    with place.store.snapshot() as tx:
        file = tx.files.get(job.tenant_id, ended.output_file_id, clock.now)
    assert file is not None
    assert (file.expires_at, file.purpose) == (clock.now + timedelta(hours=1), "batch_output")


def test_more_failed_rows_than_a_job_allows_fail_it_in_the_end(place: Place) -> None:
    job = a_batch(place, ["good", "bad"], max_error_rate=0.4)
    place.work_off()
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "max_error_rate_exceeded")
    assert ended.output_file_id is not None  # partial output is kept


def test_rows_of_a_compressed_file_that_were_not_run_have_their_ids(place: Place) -> None:
    lines = [a_line(f"r{number}", text) for number, text in enumerate(TEXTS)]
    job = planned(place, place.batch(gzip.compress(jsonl(lines))))
    claim = claimed(place.store)
    place.commit(claim, 0, place.results(claim)[3:5])
    stop(place, job, StopReason.CANCELLED)
    assert stop_held(place.store, claim.lease)

    ended = assembled(place, job)

    assert ids(place.file_lines(ended, ended.output_file_id)) == ["r3", "r4"]
    not_run = place.file_lines(ended, ended.error_file_id)
    assert ids(not_run) == ["r0", "r1", "r2", *(f"r{number}" for number in range(5, 12))]
