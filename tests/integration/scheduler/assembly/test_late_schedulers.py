"""A scheduler that stands still inside an assembly and wakes up when the job is over, or that looked before.

It changes nothing any more: `_SUCCESS` lies where the parts and the manifest are one job's, and only there.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from nightshift.errors import StorageUnavailable
from nightshift.jobs import Job, JobState
from nightshift.objectstore import ObjectInfo, ObjectStore, ObjectUri
from nightshift.objectstore.objects import pieces_of
from nightshift.store.jobs.jobs import Jobs
from nightshift.tenants.keys import DEFAULT_TENANT
from nightshift.testing import FakeClock
from tests.integration.scheduler.assembly.conftest import TEXTS, a_batch, a_native_job, assembled
from tests.integration.scheduler.scheduling import IDLE_S, BusyStore, Place


@dataclass
class SleepyStore:
    """An object store whose caller falls asleep once: before it removes an object, or when all the bytes of
    one have been read and it has not appeared yet.
    """

    inner: ObjectStore
    change: str  # put or delete …
    name: str  # … of this object
    meanwhile: Callable[[], object]
    naps: list[str] = field(default_factory=list)

    def put(self, key: str, data: bytes | Iterable[bytes]) -> ObjectInfo:
        return self.inner.put(key, self._read_slowly(key, data))

    def delete(self, key: str) -> None:
        self._nap("delete", key)
        self.inner.delete(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _read_slowly(self, key: str, data: bytes | Iterable[bytes]) -> Iterator[bytes]:
        yield from pieces_of(data)
        self._nap("put", key)

    def _nap(self, change: str, key: str) -> None:
        if change == self.change and key.endswith(self.name) and not self.naps:
            self.naps.append(key)
            Context().run(self.meanwhile)  # others do it: what is in force here is not in force for them


@pytest.fixture(params=[False, True], ids=["leads no longer", "leads again"])
def leads_afterwards(request: pytest.FixtureRequest) -> bool:
    """Of a scheduler that wakes up."""
    return bool(request.param)


def the_output_is_of(place: Place, job: Job) -> None:
    """Every part is the one that this job's manifest describes, and `_SUCCESS` says so."""
    manifest = json.loads(place.out("manifest.json"))
    assert manifest["job_id"] == job.id
    assert manifest["parts"]
    for part in manifest["parts"]:
        assert hashlib.sha256(place.out(part["name"])).hexdigest() == part["sha256"], part["name"]
    assert place.out("_SUCCESS") == b""


def test_success_of_a_job_that_another_has_ended_stays(
    place: Place, clock: FakeClock, leads_afterwards: bool
) -> None:
    job = a_native_job(place, clock, TEXTS)
    place.work_off()
    leads = [True]

    def another_ends_the_job() -> None:
        assert assembled(place, job, clock).state is JobState.SUCCEEDED
        leads[0] = leads_afterwards

    sleepy = BusyStore(place.objects, "head", another_ends_the_job)  # as it looks for its first note
    assembled(place, job, clock, place.assembly(sleepy, may_continue=lambda: leads[0]))

    assert not leads[0] or leads_afterwards
    the_output_is_of(place, job)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("delete", "_SUCCESS"),
        ("put", "part-00000.jsonl"),
        ("put", "part-00001.jsonl"),
        ("put", "manifest.json"),
        ("put", "_SUCCESS"),
    ],
)
def test_the_next_job_to_write_to_a_place_keeps_it(
    place: Place,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    name: str,
    leads_afterwards: bool,
) -> None:
    (place.bucket / "out").mkdir()
    (place.bucket / "out" / "_SUCCESS").touch()  # of the night before
    tonight = a_native_job(place, clock, TEXTS)
    place.work_off()
    leads, nights = [True], [tonight]

    def a_night_goes_by() -> None:
        assert assembled(place, tonight, clock).state is JobState.SUCCEEDED
        nights.append(a_native_job(place, clock, [f"tomorrow's {text}" for text in TEXTS]))
        place.work_off()
        assert assembled(place, nights[1], clock).state is JobState.SUCCEEDED
        leads[0] = leads_afterwards

    destination = place.locations.open(ObjectUri.parse(place.uri("out/")), DEFAULT_TENANT)
    sleepy = SleepyStore(destination, change, name, a_night_goes_by)
    monkeypatch.setattr(place.locations, "open", lambda *which: sleepy)
    assembled(place, tonight, clock, place.assembly(may_continue=lambda: leads[0], parts_at_once=1))

    assert len(nights) == 2, "it never fell asleep"
    the_output_is_of(place, nights[1])


def test_a_job_that_goes_on_after_another_wrote_to_its_place_writes_its_parts_again(
    place: Place, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tonight = a_native_job(place, clock, TEXTS)
    place.work_off()
    destination = place.locations.open(ObjectUri.parse(place.uri("out/")), DEFAULT_TENANT)
    away = SleepyStore(destination, "put", "manifest.json", refuse)  # its parts are written, and noted
    with monkeypatch.context() as patch:
        patch.setattr(place.locations, "open", lambda *which: away)
        assert assembled(place, tonight, clock).state is JobState.FINALIZING
    tomorrow = a_native_job(place, clock, [f"tomorrow's {text}" for text in TEXTS[:-1]])
    place.work_off()
    with monkeypatch.context() as patch:  # tonight's rests until tomorrow's is over
        patch.setattr(Jobs, "to_assemble", lambda jobs, limit, after=None: [place.job(tomorrow)])
        assert assembled(place, tomorrow, clock).state is JobState.SUCCEEDED

    assert assembled(place, tonight, clock).state is JobState.SUCCEEDED

    the_output_is_of(place, tonight)


@pytest.mark.parametrize("accepted", [a_native_job, a_batch])
def test_a_pass_that_looked_before_a_job_ended_does_not_begin_it_again(
    place: Place,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    accepted: Callable[[Place, FakeClock, list[str]], Job],
) -> None:
    job = accepted(place, clock, TEXTS)
    place.work_off()
    duty = place.assembly()
    ended = assembled(place, job, clock, duty)
    assert ended.state is JobState.SUCCEEDED
    written = times_of_writing(place)

    as_it_was = replace(ended, state=JobState.FINALIZING, finished_at=None)
    monkeypatch.setattr(Jobs, "to_assemble", lambda jobs, limit, after=None: [as_it_was])
    assert duty.run_once(clock.now).started == 1
    assert duty.wait_until_idle(IDLE_S)

    assert times_of_writing(place) == written
    assert duty.run_once(clock.now).too_late == 1


def refuse() -> None:
    raise StorageUnavailable


def times_of_writing(place: Place) -> dict[str, int]:
    """Of every file of every output."""
    files = [*place.bucket.rglob("out/*"), *(place.bucket.parent / "objects" / "files").rglob("*")]
    return {str(path): path.stat().st_mtime_ns for path in files if path.is_file()}
