"""Manifests of running jobs: each in its own thread, one of one job at a time, none after the last one."""

import json
from contextvars import Context
from dataclasses import dataclass, field
from threading import Event, Semaphore
from typing import Any

import pytest

from nightshift.bulk.results.part_writer import PartWriter
from nightshift.errors import StorageDenied
from nightshift.jobs import Job, JobState, StopReason
from nightshift.objectstore import ObjectInfo, ObjectStore, Staged
from scheduler.duties.running_output import OutputParts
from scheduler.output.running_manifests import RunningManifests
from tests.helpers.fakes import MODEL, FakeClock, a_spec, submit
from tests.integration.scheduler.assembly.conftest import TEXTS, a_native_job, assembled, planned
from tests.integration.scheduler.scheduling import IDLE_S, TEMPLATE, BusyStore, FailingStore, Place, jsonl

SIGNAL_S = 60.0


@dataclass
class SlowPlaces:
    """A store in which the manifests of one folder wait until they may go on; the others are told of."""

    inner: ObjectStore
    slow: str
    may_go_on: Event = field(default_factory=Event)
    waiting: Semaphore = field(default_factory=lambda: Semaphore(0))  # one for each that waits
    published: Event = field(default_factory=Event)  # a manifest of another folder
    begun: list[str] = field(default_factory=list)

    def stage(self, key: str, **more: Any) -> str:
        if key.endswith("_manifest.json"):
            self.begun.append(key)
            if f"/{self.slow}/" in key:
                self.waiting.release()
                assert self.may_go_on.wait(SIGNAL_S)
        return self.inner.stage(key, **more)

    def publish(self, key: str, staged: Staged) -> ObjectInfo:
        info = self.inner.publish(key, staged)
        if key.endswith("_manifest.json"):
            self.published.set()
        return info

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def store_of_outputs(place: Place) -> ObjectStore:
    return place.outputs


def with_written_parts(place: Place, output: str, duty: OutputParts) -> Job:
    """A running job with a written part that no manifest has, and shards to come."""
    job = a_native_job(place, 4 * TEXTS, part_rows=1, output=place.uri(f"{output}/"))
    place.work_off(shards=1)
    duty.run_once(place.store.now())
    return job


def write_all(place: Place) -> None:
    writer = PartWriter(place.part_dependencies(), "worker_1")
    while writer.write_next():
        pass


def listed(place: Place, output: str) -> int:
    said = json.loads((place.bucket / output / "_manifest.json").read_text())
    return len(said["parts"])


def test_a_place_that_hangs_delays_no_other_job(place: Place, clock: FakeClock) -> None:
    places = SlowPlaces(store_of_outputs(place), "slow")
    place.open_as(places)
    duty = place.output_parts(threads_max=0)
    with_written_parts(place, "slow", duty)
    write_all(place)
    duty.run_once(clock.now)
    assert places.waiting.acquire(timeout=SIGNAL_S)

    place.work_off()
    quick = a_native_job(place, 4 * TEXTS, part_rows=1)
    place.work_off()
    assert duty.run_once(clock.now).parts > len(place.shards(quick)), "those of both are cut"
    write_all(place)
    clock.advance(seconds=5)
    duty.run_once(clock.now)
    assert places.published.wait(SIGNAL_S)

    assert listed(place, "out") == len(place.shards(quick))
    assert not (place.bucket / "slow" / "_manifest.json").exists()
    assert [key.rpartition("/bucket/")[2] for key in places.begun] == [
        "slow/_manifest.json",
        "out/_manifest.json",
    ]
    places.may_go_on.set()
    assert duty.wait_until_idle(IDLE_S)
    assert listed(place, "slow") == 1, "as of when it began"
    place.run(duty)
    assert listed(place, "slow") == len(place.shards(quick))


def test_one_tenant_whose_places_hang_leaves_threads_for_the_others(place: Place, clock: FakeClock) -> None:
    places = SlowPlaces(store_of_outputs(place), "slow")
    place.open_as(places)
    duty = place.output_parts(threads_max=0)
    for number in range(6):
        a_native_job(place, ["a"], output=place.uri(f"slow/{number}/"))
        place.work_off()
    (place.bucket / "in.jsonl").write_bytes(jsonl({"text": text} for text in TEXTS))
    spec = a_spec(input=place.uri("in.jsonl"), output=place.uri("out/"), template=TEMPLATE)
    theirs = planned(place, submit(place.store, tenant_id="other", model=MODEL, spec=spec))
    place.work_off()
    duty.run_once(clock.now)
    write_all(place)

    duty.run_once(clock.now)
    assert places.published.wait(SIGNAL_S)
    assert all(places.waiting.acquire(timeout=SIGNAL_S) for _ in range(4))

    said = json.loads(place.out("_manifest.json"))
    assert said["job_id"] == theirs.id
    assert len(places.begun) == 5, "the other tenant has four of the eight threads"
    places.may_go_on.set()
    assert duty.wait_until_idle(IDLE_S)


def test_a_manifest_that_comes_after_the_last_one_is_not_written(place: Place, clock: FakeClock) -> None:
    inner = store_of_outputs(place)
    duty = place.output_parts(threads_max=0)
    job = with_written_parts(place, "out", duty)
    write_all(place)

    def the_job_is_over() -> None:
        place.open_as(inner)
        place.work_off()
        place.assembly().run_once(clock.now)
        assert Context().run(assembled, place, job).state is JobState.SUCCEEDED

    busy = BusyStore(inner, "stage", the_job_is_over)
    place.open_as(busy)
    place.run(duty)

    said = json.loads(place.out("_manifest.json"))
    assert (said["complete"], len(said["parts"])) == (True, len(place.shards(job)))


def test_a_manifest_of_a_running_job_never_replaces_that_of_its_assembly(
    place: Place, clock: FakeClock
) -> None:
    inner = store_of_outputs(place)
    duty = place.output_parts(threads_max=0)
    job = with_written_parts(place, "out", duty)
    write_all(place)

    def the_job_is_finalized() -> None:
        with place.store.transaction() as tx:
            assert tx.jobs.mark_finalizing(job.id, clock.now)

    busy = BusyStore(inner, "stage", the_job_is_finalized)
    place.open_as(busy)
    place.run(duty)

    assert [path.name for path in (place.bucket / "out").iterdir()] == place.part_names()


def test_a_place_that_refuses_the_manifest_stops_the_job_early(place: Place, clock: FakeClock) -> None:
    duty = place.output_parts(threads_max=0)
    job = with_written_parts(place, "out", duty)
    write_all(place)
    refusing = FailingStore(store_of_outputs(place), "stage", StorageDenied())
    place.open_as(refusing)
    place.run(duty)

    assert place.job(job).stop_reason is StopReason.FAILED
    assert duty.run_once(clock.now).stopped == 1
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "storage_denied")


def test_a_thread_that_hangs_is_seen_when_there_is_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunningManifests, "blocked_s", 7.0)

    assert place.output_parts().blocked_s == 7.0
