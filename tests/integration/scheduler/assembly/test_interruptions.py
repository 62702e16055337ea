"""An assembly that is interrupted, postponed, or done by two: its job ends once, and with the same bytes."""

from dataclasses import replace

import pytest

from nightshift.bulk.results.segments import decode_segment, encode_segment
from nightshift.errors import CredentialsRefused, ObjectNotFound, StorageDenied, StorageUnavailable
from nightshift.jobs import JobState, StopReason, Webhook
from nightshift.objectstore import Locations, ObjectDamaged
from scheduler.duties.assembly import LATE
from scheduler.runtime.thread_pools import JobPoolConfig
from tests.helpers.fakes import FakeClock, claimed
from tests.integration.scheduler.assembly.conftest import a_batch, a_native_job, assembled, ids, stop
from tests.integration.scheduler.scheduling import BusyStore, FailingStore, Place, jsonl
from tests.integration.store.watching import stop_held


def test_a_second_attempt_writes_the_same_bytes_to_the_same_places(place: Place) -> None:
    job = a_batch(place, ["good", "bad", "good"])
    place.work_off()
    dying = place.assembly(FailingStore(place.objects, "put", StorageUnavailable(), calls_before=1))
    assert assembled(place, job, dying).state is JobState.FINALIZING  # one of two files is written
    first = {info.key: place.objects.read(info.key) for info in place.objects.list("files/")}

    ended = assembled(place, job)
    second = {info.key: place.objects.read(info.key) for info in place.objects.list("files/")}
    assert ended.state is JobState.SUCCEEDED
    assert first.items() < second.items()
    assert ids(place.file_lines(ended, ended.error_file_id)) == ["r1"]


def test_storage_that_is_away_postpones_a_job_and_delays_no_other(place: Place, clock: FakeClock) -> None:
    job = a_batch(place, ["a"])
    place.work_off()
    failing = FailingStore(place.objects, "put", StorageUnavailable())
    duty = place.assembly(failing)
    assert assembled(place, job, duty).state is JobState.FINALIZING
    failing.is_broken = False
    passed = duty.run_once(clock.now)
    assert (passed.postponed, passed.started) == (1, 0)
    clock.advance(seconds=JobPoolConfig.retry_first_s)
    assert assembled(place, job, duty).state is JobState.SUCCEEDED


def test_a_place_that_a_job_named_is_waited_for_until_a_day_past_its_deadline(
    place: Place, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_native_job(place, ["a", "bad"])
    place.work_off()
    opened = place.locations.open
    monkeypatch.setattr(
        place.locations, "open", lambda *which: FailingStore(opened(*which), "stage", StorageUnavailable())
    )
    duty = place.assembly()
    clock.advance(seconds=(job.deadline_at + LATE - clock.now).total_seconds() - 1)
    assert assembled(place, job, duty).state is JobState.FINALIZING
    duty.run_once(clock.now)  # it rests from now on
    clock.advance(seconds=JobPoolConfig.retry_first_s)

    ended = assembled(place, job, duty)
    assert (ended.state, ended.errors[0].param) == (JobState.FAILED, "output")
    assert (ended.counts.total, ended.counts.succeeded, ended.counts.failed) == (2, 1, 1)


def test_an_operators_mistake_in_our_own_store_is_waited_out(place: Place) -> None:
    job = a_batch(place, ["a"])
    place.work_off()
    duty = place.assembly(FailingStore(place.objects, "put", StorageDenied()))
    assert assembled(place, job, duty).state is JobState.FINALIZING


def test_results_that_are_refused_in_our_own_store_are_waited_for_wherever_the_output_goes(
    place: Place, clock: FakeClock
) -> None:
    job = a_native_job(place, ["a"])
    place.work_off()
    refusing = FailingStore(place.objects, "stream", StorageDenied())
    place.write_parts(place.output_parts(refusing))
    place.assembly().run_once(clock.now)
    assert place.job(job).state is JobState.FINALIZING

    clock.advance(seconds=60)
    assert assembled(place, job).state is JobState.SUCCEEDED


def test_a_place_that_refuses_the_output_fails_its_job_and_expired_credentials_do_not(
    place: Place, clock: FakeClock
) -> None:
    job = a_native_job(place, ["a"])
    place.work_off()
    for error, state in ((CredentialsRefused(), JobState.FINALIZING), (StorageDenied(), JobState.FAILED)):
        refusing = FailingStore(place.outputs, "stage", error)
        place.open_as(refusing)
        clock.advance(seconds=60)
        ended = assembled(place, job)
        assert ended.state is state
    assert (ended.errors[0].code, ended.errors[0].param) == ("storage_denied", "output")


def test_an_input_that_is_refused_fails_its_job_although_the_output_would_be_ours(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_native_job(place, ["a"], output=None)
    stop(place, job, StopReason.CANCELLED)
    source = place.sources.open(place.uri("in.jsonl"), job.tenant_id)
    refused = replace(source, store=FailingStore(source.store, "stream", StorageDenied()))
    monkeypatch.setattr(place.sources, "open", lambda uri, tenant_id: refused)

    ended = assembled(place, job)

    assert ended.state is JobState.FAILED
    assert (ended.errors[0].code, ended.errors[0].param) == ("storage_denied", "input")


def test_an_output_that_may_no_longer_be_written_fails_its_job_and_says_so(place: Place) -> None:
    job = a_native_job(place, ["a"])
    place.work_off()
    place.locations = Locations((), ())
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "location_not_allowed")
    assert (ended.counts.total, ended.counts.succeeded) == (1, 1)


def test_an_input_that_was_taken_away_before_its_rows_could_be_named_fails_the_job(place: Place) -> None:
    job = a_native_job(place, ["a"])
    stop(place, job, StopReason.CANCELLED)
    (place.bucket / "in.jsonl").unlink()
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, ObjectNotFound.default_code)
    assert ended.errors[0].param == "input"


def test_a_scheduler_that_must_stop_leaves_the_job_to_the_next(place: Place, clock: FakeClock) -> None:
    job = a_batch(place, ["a"])
    place.work_off()
    stopping = place.assembly(may_continue=lambda: False)
    assert assembled(place, job, stopping).state is JobState.FINALIZING
    assert stopping.run_once(clock.now).postponed == 0
    assert assembled(place, job).state is JobState.SUCCEEDED


def test_two_schedulers_end_a_job_once(place: Place, clock: FakeClock) -> None:
    job = a_batch(place, ["good", "bad"], webhook=Webhook("https://example.com/", ()))
    place.work_off()
    quicker = BusyStore(place.objects, "put", lambda: assembled(place, job))
    slower = place.assembly(quicker)
    ended = assembled(place, job, slower)
    assert ended.state is JobState.SUCCEEDED
    assert slower.run_once(clock.now).too_late == 1
    assert len(place.file_lines(ended, ended.output_file_id)) == 1
    with place.store.snapshot() as tx:
        assert len(tx.deliveries.due(clock.now, 10)) == 1


def test_an_input_that_was_replaced_under_its_results_fails_the_job(place: Place) -> None:
    job = a_native_job(place, ["one", "two"])
    half = claimed(place.store)
    place.commit(half, 0, place.results(half)[1:])
    stop(place, job, StopReason.CANCELLED)
    stop_held(place.store, half.lease)
    (place.bucket / "in.jsonl").write_bytes(jsonl([{"text": "one"}]))
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "input_changed")


def test_results_that_were_damaged_in_the_store_are_never_passed_on(place: Place) -> None:
    job = a_batch(place, ["a", "b"])
    place.work_off()
    segment = next(iter(place.objects.list("segments/")))
    results = decode_segment(place.objects.read(segment.key))
    damaged = [replace(result, body_text='{"choices":[]}') for result in results]
    # A segment, and not the one that was listed.
    place.objects.put(segment.key, encode_segment(results[0].shard, damaged).data)

    ended = assembled(place, job)

    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, ObjectDamaged.default_code)
    assert ended.output_file_id is None
