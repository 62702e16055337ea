"""A job shows why its output is not written while it waits for that, and not any longer."""

from nightshift.cli.bulk.run import OUTPUT_INCOMPLETE
from nightshift.errors import StorageDenied, StorageUnavailable
from nightshift.jobs import Job, JobState
from nightshift.jobs.part import OutputProblem
from nightshift.lifecycle.cutting import problem_of
from tests.helpers.fakes import FakeClock
from tests.integration.scheduler.assembly.conftest import TEXTS, a_batch, a_native_job, assembled
from tests.integration.scheduler.scheduling import FailingStore, Place

AWAY = StorageUnavailable("the bucket is away")


def problem(place: Place, job: Job) -> OutputProblem | None:
    with place.store.snapshot() as tx:
        return problem_of(tx, tx.jobs.fetch(job.id), tx.now())


def message(place: Place, job: Job) -> str | None:
    shown = problem(place, job)
    return None if shown is None else shown.problem.error.message


def broken_from(place: Place, operation: str, error: Exception, calls_before: int = 0) -> FailingStore:
    inner = place.outputs
    broken = FailingStore(inner, operation, error, calls_before=calls_before)
    place.open_as(broken)
    return broken


def test_a_part_that_waits_for_its_place_says_why_and_until_when(place: Place, clock: FakeClock) -> None:
    job = a_native_job(place, TEXTS)
    place.work_off()
    assert problem(place, job) is None
    away = broken_from(place, "stage", AWAY)

    place.write_parts()

    shown = problem(place, job)
    assert shown is not None
    assert (shown.problem.error.code, shown.problem.error.param) == ("storage_unavailable", "output")
    assert (shown.problem.error.message, shown.problem.is_permanent) == ("the bucket is away", False)
    assert shown.next_attempt_at is not None
    assert shown.next_attempt_at > clock.now

    clock.advance(seconds=120)
    shown = problem(place, job)
    assert shown is not None
    assert shown.next_attempt_at is None, "it is due"
    away.is_broken = False
    place.write_parts()
    assert problem(place, job) is None


def test_a_part_that_never_can_be_written_is_what_is_said(place: Place) -> None:
    job = a_native_job(place, 4 * TEXTS, part_rows=1)
    place.work_off(shards=1)
    away = broken_from(place, "stage", AWAY)
    place.write_parts()
    away._error = StorageDenied("not yours")
    place.work_off(shards=1)
    place.write_parts()

    shown = problem(place, job)

    assert shown is not None
    assert (shown.problem.is_permanent, shown.problem.error.message) == (True, "not yours")
    assert shown.next_attempt_at is None


def test_a_running_jobs_manifest_that_cannot_be_written_is_said_until_it_is(
    place: Place, clock: FakeClock
) -> None:
    job = a_native_job(place, 4 * TEXTS, part_rows=1)
    place.work_off(shards=1)
    duty = place.output_parts()
    place.write_parts(duty)  # the part alone
    away = broken_from(place, "stage", AWAY)
    place.write_parts(duty)

    assert place.job(job).state is JobState.RUNNING
    assert message(place, job) == "the bucket is away"

    away.is_broken = False
    for _ in range(2):  # its pause begins with a pass
        clock.advance(seconds=30)
        place.write_parts(duty)
    assert message(place, job) is None


def test_the_last_manifest_that_cannot_be_written_is_said_until_the_job_ends(place: Place) -> None:
    job = a_native_job(place, TEXTS)
    place.work_off()
    place.write_parts()
    away = broken_from(place, "publish", AWAY)

    assert assembled(place, job).state is JobState.FINALIZING
    assert message(place, job) == "the bucket is away"

    away.is_broken = False
    assert assembled(place, job).state is JobState.SUCCEEDED
    assert message(place, job) is None


def test_an_unforeseen_error_is_said_without_its_words(place: Place) -> None:
    job = a_batch(place, TEXTS)
    place.work_off()
    broken = FailingStore(place.objects, "put", RuntimeError("/srv/secret"))

    duty = place.assembly(broken)
    assert assembled(place, job, duty).state is JobState.FINALIZING
    assert message(place, job) == "an unforeseen error of the service"

    broken.is_broken = False
    assert assembled(place, job).state is JobState.SUCCEEDED
    assert message(place, job) is None


def test_a_job_without_a_complete_output_says_where_its_finished_rows_are(place: Place) -> None:
    job = a_native_job(place, TEXTS)
    place.work_off()
    broken_from(place, "stage", StorageDenied("not yours"))

    ended = assembled(place, job)

    cause, where = ended.errors
    assert (ended.state, cause.code, cause.message) == (JobState.FAILED, "storage_denied", "not yours")
    assert (where.code, where.param) == (OUTPUT_INCOMPLETE, "output")
    assert f"the {len(TEXTS)} rows that finished are at /v1/jobs/{job.id}/results" in where.message
