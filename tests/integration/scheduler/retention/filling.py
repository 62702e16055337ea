"""Fills a service with jobs of every kind and fate: a row in every table that has any of jobs, and an object
of every sort.
"""

from dataclasses import replace
from datetime import timedelta

from nightshift.bulk.results.destinations import destination_of
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job, JobState, StopReason, Webhook, carry_over_key, segment_key
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.files import LIFETIME, FilePurpose, Upload, UploadPart, UploadStatus
from nightshift.jobs.ids import new_id
from nightshift.jobs.part import CutLimits, PartUpload
from nightshift.lifecycle import cutting, transitions
from nightshift.lifecycle.controls import delete_job
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store.jobs.idempotency import KeptAnswer
from tests.helpers.fakes import (
    FakeClock,
    a_worker,
    an_answer,
    an_attempt,
    claimed,
    claimed_online,
    submit_online,
)
from tests.integration.scheduler.assembly.conftest import a_batch, a_native_job, assembled, planned, stop
from tests.integration.scheduler.assembly.test_retries import retry_of
from tests.integration.scheduler.scheduling import Place

WEBHOOK = Webhook("https://receiver.example/hook", events=())
TEXTS = [f"text {number}" for number in range(24)]
FILES_STAY = timedelta(days=30)  # those of batches


def fill(place: Place, clock: FakeClock) -> None:
    an_answered_request(place, clock)
    done = a_job_with_parts(place, clock)
    a_retry(place, clock, done)
    a_batch_with_files(place, clock)
    a_cancelled_job(place, clock)
    a_deleted_job(place, clock)
    files_in_parts(place, clock)
    a_job_whose_worker_and_writer_died(place, clock)  # last: nothing may claim its shards


def an_answered_request(place: Place, clock: FakeClock) -> None:
    """Makes a request with an Idempotency-Key, and one that becomes a dead letter."""
    for is_dead in (False, True):
        submitted = submit_online(place.store)
        keep_key(place, submitted.job, clock)
        claim = claimed_online(place.store, submitted.shard_id)
        with place.store.transaction() as tx:
            assert transitions.record_answer(tx, claim, an_answer(500 if is_dead else 200), tx.now())
            if is_dead:
                letter = DeadLetter(
                    id=new_id("dead"),
                    tenant_id=submitted.job.tenant_id,
                    job_id=submitted.job.id,
                    shard_id=claim.lease.shard_id,
                    row=0,
                    cause=ExitCause.KILLED,
                    crashes=3,
                    worker_id=None,
                    died_at=clock.now,
                )
                tx.dead_letters.insert(letter)


def a_job_with_parts(place: Place, clock: FakeClock) -> Job:
    """Runs a job in the service's own store, with answers and errors. Its webhook has been told."""
    job = a_native_job(place, clock, [*TEXTS, "bad"], webhook=WEBHOOK, output=None)
    keep_key(place, job, clock)
    place.work_off()
    ended = assembled(place, job, clock)
    assert (ended.state, ended.counts.failed) == (JobState.SUCCEEDED, 1)
    attempt_deliveries(place, ended.id, clock, 200, DeliveryState.DELIVERED)
    return ended


def a_retry(place: Place, clock: FakeClock, old: Job) -> None:
    new = planned(place, retry_of(place, old), clock)
    place.work_off(lambda request: (200, {}))
    assert assembled(place, new, clock).state is JobState.SUCCEEDED
    attempt_deliveries(place, new.id, clock, 500, DeliveryState.DEAD)


def a_batch_with_files(place: Place, clock: FakeClock) -> None:
    """Its receiver wants no more events."""
    expires_at = clock.now + FILES_STAY
    job = a_batch(place, clock, [*TEXTS, "bad"], expires_at=expires_at, webhook=WEBHOOK)
    place.work_off()
    ended = assembled(place, job, clock)
    assert ended.output_file_id is not None
    assert ended.error_file_id is not None
    with place.store.transaction() as tx:
        for delivery in tx.deliveries.list(job.tenant_id, limit=100):
            tx.deliveries.disable_endpoint(delivery, tx.now())
    attempt_deliveries(place, ended.id, clock, 410, DeliveryState.DEAD)


def a_cancelled_job(place: Place, clock: FakeClock) -> None:
    job = a_native_job(place, clock, TEXTS)
    place.work_off(shards=1)
    stop(place, job, StopReason.CANCELLED)
    assert assembled(place, job, clock).state is JobState.CANCELLED


def a_deleted_job(place: Place, clock: FakeClock) -> None:
    """Cancels a job for its owner, who is not told any more. A writer comes too late."""
    job = a_native_job(place, clock, TEXTS, webhook=WEBHOOK, output=None)
    place.work_off()
    ended = assembled(place, job, clock)
    with place.store.transaction() as tx:
        assert delete_job(tx, ended, tx.now())
    late = destination_of(replace(ended, id=new_id("job")), place.objects, place.locations)
    place.objects.stage(late.key("part-00000.jsonl"))


def files_in_parts(place: Place, clock: FakeClock) -> None:
    """One upload that was abandoned, one that was completed with a file that expires."""
    for is_completed in (False, True):
        upload = Upload(
            id=new_id("upload"),
            tenant_id="default",
            purpose=FilePurpose.BATCH,
            filename="in.jsonl",
            size_bytes=9,
            created_at=clock.now,
            expires_at=clock.now + LIFETIME,
            file_expires_after_s=None,
            status=UploadStatus.PENDING,
        )
        part = UploadPart(
            id=new_id("part"),
            upload_id=upload.id,
            tenant_id=upload.tenant_id,
            size_bytes=9,
            sha256="",
            created_at=clock.now,
        )
        with place.store.transaction() as tx:
            tx.uploads.insert(upload)
            tx.uploads.insert_part(part)
        place.objects.put(part.key, b"one part\n")
        if is_completed:
            file = place.upload(b"one part\n", expires_at=clock.now + FILES_STAY)
            with place.store.transaction() as tx:
                assert tx.uploads.end("default", upload.id, UploadStatus.COMPLETED, file.id)
            place.objects.delete(part.key)


def a_job_whose_worker_and_writer_died(place: Place, clock: FakeClock) -> None:
    """A shard is leased, with a segment that is listed, one that is not, and rows carried over; a part of the
    output is staged.
    """
    job = a_native_job(place, clock, TEXTS, output=None, webhook=WEBHOOK)
    place.work_off(shards=1)
    worker = a_worker(started_at=clock.now, heartbeat_at=clock.now)
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


def keep_key(place: Place, job: Job, clock: FakeClock) -> None:
    kept = KeptAnswer("f" * 64, job.id, 200, {})
    with place.store.transaction() as tx:
        assert tx.idempotency.keep(
            job.tenant_id, new_id("key"), kept, tx.now(), clock.now + timedelta(days=1)
        )


def attempt_deliveries(
    place: Place, job_id: str, clock: FakeClock, status_code: int, state: DeliveryState
) -> None:
    """The receiver answers to all that is owed of a job."""
    with place.store.transaction() as tx:
        owed = [one for one in tx.deliveries.list("default", limit=100) if one.job_id == job_id]
        assert owed
        for delivery in owed:
            attempt = replace(an_attempt(delivery, status_code=status_code), started_at=clock.now)
            assert tx.deliveries.record(delivery, attempt, state, clock.now)
