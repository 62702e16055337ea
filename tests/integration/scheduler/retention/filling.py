"""Fills a service with jobs of every kind and fate: a row in every table that has any of jobs, and an object
of every sort.
"""

from dataclasses import replace
from datetime import timedelta

from nightshift.bulk.results.destinations import destination_of
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job, JobState, StopReason, Webhook, carry_over_key, segment_key
from nightshift.jobs.files import LIFETIME, UploadStatus
from nightshift.jobs.ids import new_id
from nightshift.jobs.part import CutLimits, PartUpload
from nightshift.lifecycle import cutting
from nightshift.lifecycle.controls import delete_job
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store.jobs.idempotency import KeptAnswer
from tests.helpers.fakes import a_dead_letter, a_worker, an_attempt, an_upload, an_upload_part, claimed
from tests.integration.scheduler.assembly.conftest import a_batch, a_native_job, assembled, planned, stop
from tests.integration.scheduler.assembly.test_retries import retry_of
from tests.integration.scheduler.scheduling import Place, answered

WEBHOOK = Webhook("https://receiver.example/hook", events=())
TEXTS = [f"text {number}" for number in range(24)]
FILES_STAY = timedelta(days=30)  # those of batches


def fill(place: Place) -> None:
    an_answered_request(place)
    done = a_job_with_parts(place)
    a_retry(place, done)
    a_batch_with_files(place)
    a_cancelled_job(place)
    a_deleted_job(place)
    files_in_parts(place)
    a_job_whose_worker_and_writer_died(place)  # last: nothing may claim its shards


def an_answered_request(place: Place) -> None:
    """Makes a request with an Idempotency-Key, and one that becomes a dead letter."""
    for status_code in (200, 500):
        submitted = answered(place.store, status_code)
        keep_key(place, submitted.job)
        if status_code == 500:
            with place.store.transaction() as tx:
                tx.dead_letters.insert(a_dead_letter(submitted.job, submitted.shard_id or "", row=0))


def a_job_with_parts(place: Place) -> Job:
    """Runs a job in the service's own store, with answers and errors. Its webhook has been told."""
    job = a_native_job(place, [*TEXTS, "bad"], webhook=WEBHOOK, output=None)
    keep_key(place, job)
    place.work_off()
    ended = assembled(place, job)
    assert (ended.state, ended.counts.failed) == (JobState.SUCCEEDED, 1)
    attempt_deliveries(place, ended.id, 200, DeliveryState.DELIVERED)
    return ended


def a_retry(place: Place, old: Job) -> None:
    new = planned(place, retry_of(place, old))
    place.work_off(lambda request: (200, {}))
    assert assembled(place, new).state is JobState.SUCCEEDED
    attempt_deliveries(place, new.id, 500, DeliveryState.DEAD)


def a_batch_with_files(place: Place) -> None:
    """Its receiver wants no more events."""
    expires_at = place.store.now() + FILES_STAY
    job = a_batch(place, [*TEXTS, "bad"], expires_at=expires_at, webhook=WEBHOOK)
    place.work_off()
    ended = assembled(place, job)
    assert ended.output_file_id is not None
    assert ended.error_file_id is not None
    with place.store.transaction() as tx:
        for delivery in tx.deliveries.list(job.tenant_id, limit=100):
            tx.deliveries.disable_endpoint(delivery, tx.now())
    attempt_deliveries(place, ended.id, 410, DeliveryState.DEAD)


def a_cancelled_job(place: Place) -> None:
    job = a_native_job(place, TEXTS)
    place.work_off(shards=1)
    stop(place, job, StopReason.CANCELLED)
    assert assembled(place, job).state is JobState.CANCELLED


def a_deleted_job(place: Place) -> None:
    """Cancels a job for its owner, who is not told any more. A writer comes too late."""
    job = a_native_job(place, TEXTS, webhook=WEBHOOK, output=None)
    place.work_off()
    ended = assembled(place, job)
    with place.store.transaction() as tx:
        assert delete_job(tx, ended, tx.now())
    late = destination_of(replace(ended, id=new_id("job")), place.objects, place.locations)
    place.objects.stage(late.key("part-00000.jsonl"))


def files_in_parts(place: Place) -> None:
    """One upload that was abandoned, one that was completed with a file that expires."""
    for is_completed in (False, True):
        now = place.store.now()
        upload = an_upload(size_bytes=9, created_at=now, expires_at=now + LIFETIME)
        part = an_upload_part(upload, b"one part\n")
        with place.store.transaction() as tx:
            tx.uploads.insert(upload)
            tx.uploads.insert_part(part)
        place.objects.put(part.key, b"one part\n")
        if is_completed:
            file = place.upload(b"one part\n", expires_at=place.store.now() + FILES_STAY)
            with place.store.transaction() as tx:
                assert tx.uploads.end("default", upload.id, UploadStatus.COMPLETED, file.id)
            place.objects.delete(part.key)


def a_job_whose_worker_and_writer_died(place: Place) -> None:
    """A shard is leased, with a segment that is listed, one that is not, and rows carried over; a part of the
    output is staged.
    """
    job = a_native_job(place, TEXTS, output=None, webhook=WEBHOOK)
    place.work_off(shards=1)
    worker = a_worker(started_at=place.store.now(), heartbeat_at=place.store.now())
    claim = claimed(place.store, worker.id)
    place.commit(claim, 0, place.results(claim)[:1])
    carry_over = carry_over_key(claim.lease, claim.shard.shard_no, seq=0, sha256="c" * 64)
    for key in (segment_key(claim.lease, claim.shard.shard_no, 7), carry_over):
        place.objects.put(key, b"not listed")
    with place.store.transaction() as tx:
        tx.workers.register(worker)
        tx.dead_letters.record_crash(claim.lease.shard_id, [1], ExitCause.KILLED)
        cutting.cut(tx, place.job(job), CutLimits(1, 1), tx.now(), is_complete=False)
        part = tx.parts.claim("scheduler_1", tx.now(), 30.0)
        assert part is not None
        place_of_output = destination_of(place.job(job), place.objects, place.locations)
        key = place_of_output.key("part-00000.jsonl")
        upload = PartUpload(name="part-00000.jsonl", key=key, upload_id=place.objects.stage(key))
        assert tx.parts.record_uploads(part.lease, [upload])
    place.objects.stage(f"{key}.unrecorded")


def keep_key(place: Place, job: Job) -> None:
    kept = KeptAnswer("f" * 64, job.id, 200, {})
    with place.store.transaction() as tx:
        assert tx.idempotency.keep(
            job.tenant_id, new_id("key"), kept, tx.now(), place.store.now() + timedelta(days=1)
        )


def attempt_deliveries(place: Place, job_id: str, status_code: int, state: DeliveryState) -> None:
    """The receiver answers to all that is owed of a job."""
    with place.store.transaction() as tx:
        owed = [one for one in tx.deliveries.list("default", limit=100) if one.job_id == job_id]
        assert owed
        for delivery in owed:
            attempt = replace(an_attempt(delivery, status_code=status_code), started_at=place.store.now())
            assert tx.deliveries.record(delivery, attempt, state, place.store.now())
