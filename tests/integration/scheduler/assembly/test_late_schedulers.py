"""A scheduler that stands still inside an assembly and wakes up when the job is over, or that looked before.

It changes nothing any more: `_SUCCESS` lies where the parts and the manifest are one job's, and only there.
"""

import hashlib
import json
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from nightshift.errors import StorageUnavailable
from nightshift.jobs import Job, JobState
from nightshift.objectstore import ObjectInfo, ObjectStore, Staged
from nightshift.store.jobs.jobs import Jobs
from tests.helpers.fakes import FakeClock
from tests.integration.scheduler.assembly.conftest import TEXTS, a_batch, a_native_job, assembled
from tests.integration.scheduler.scheduling import IDLE_S, Place

pytestmark = pytest.mark.databases("postgresql")


@dataclass
class SleepyStore:
    """An object store whose caller falls asleep once: before it removes an object, or when all the bytes of
    one are there and it has not appeared yet.
    """

    inner: ObjectStore
    change: str  # publish or delete …
    name: str  # … an object whose name begins with this
    meanwhile: Callable[[], object]
    naps: list[str] = field(default_factory=list)

    def publish(self, key: str, staged: Staged) -> ObjectInfo:
        self._nap("publish", key)
        return self.inner.publish(key, staged)

    def delete(self, key: str) -> None:
        self._nap("delete", key)
        self.inner.delete(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _nap(self, change: str, key: str) -> None:
        name = key.rpartition("/")[2]
        if change == self.change and name.startswith(self.name) and not self.naps:
            self.naps.append(key)
            Context().run(self.meanwhile)  # others do it: what is in force here is not in force for them


def the_output_is_of(place: Place, job: Job) -> None:
    """Checks that the folder has just what this job's manifest describes, and `_SUCCESS`."""
    manifest = json.loads(place.out("_manifest.json"))
    assert (manifest["job_id"], manifest["complete"]) == (job.id, True)
    files = [*manifest["parts"], *manifest["errors"]]
    assert manifest["parts"]
    for file in files:
        assert hashlib.sha256(place.out(file["name"])).hexdigest() == file["sha256"], file["name"]
    lying = {path.name for path in (place.bucket / "out").iterdir()}
    assert lying == {"_manifest.json", "_SUCCESS", *(file["name"] for file in files)}


def a_night(place: Place, texts: list[str]) -> Job:
    """A job that ends with its output."""
    job = a_native_job(place, texts)
    place.work_off()
    assert assembled(place, job).state is JobState.SUCCEEDED
    return job


def exhaustive_but(*taken: tuple[str, str, bool]) -> list[Any]:
    """Each change by a scheduler that leads again or no longer; `make test` takes these."""
    changes = [("publish", name) for name in ("part-", "errors-", "_manifest", "_SUCCESS")]
    cases = [(*change, leads) for change in (*changes, ("delete", "part-")) for leads in (False, True)]
    marks = {case: () if case in taken else (pytest.mark.exhaustive,) for case in cases}
    return [pytest.param(*case, marks=marks[case]) for case in cases]


@pytest.mark.parametrize(
    ("change", "name", "leads_afterwards"),
    exhaustive_but(
        ("publish", "part-", True),
        ("publish", "_manifest", False),
        ("publish", "_SUCCESS", True),
        ("delete", "part-", False),
    ),
)
def test_the_next_job_to_write_to_a_place_keeps_it(
    place: Place, clock: FakeClock, change: str, name: str, leads_afterwards: bool
) -> None:
    a_night(place, ["last night's"])
    tonight = a_native_job(place, [*TEXTS, "bad"])
    place.work_off()
    leads, nights = [True], [tonight]
    destination = place.outputs

    def a_night_goes_by() -> None:
        place.open_as(destination)
        clock.advance(seconds=3600)  # its leases are over
        assert assembled(place, tonight).state is JobState.SUCCEEDED
        nights.append(a_night(place, [*(f"tomorrow's {text}" for text in TEXTS), "bad"]))
        leads[0] = leads_afterwards

    sleepy = SleepyStore(destination, change, name, a_night_goes_by)
    place.open_as(sleepy)
    place.write_parts(place.output_parts(threads_max=1))
    duty = place.assembly(may_continue=lambda: leads[0])
    place.run(duty)

    assert len(nights) == 2, "it never fell asleep"
    the_output_is_of(place, nights[1])


def test_what_a_job_could_not_publish_is_not_in_the_way_of_the_next(place: Place) -> None:
    tonight = a_native_job(place, TEXTS)
    place.work_off()
    destination = place.outputs
    away = SleepyStore(destination, "publish", "_manifest.json", refuse)
    place.open_as(away)
    assert assembled(place, tonight).state is JobState.FINALIZING
    place.open_as(destination)

    assert assembled(place, tonight).state is JobState.SUCCEEDED

    the_output_is_of(place, tonight)


@pytest.mark.parametrize("accepted", [a_native_job, a_batch])
def test_a_pass_that_looked_before_a_job_ended_does_not_begin_it_again(
    place: Place,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    accepted: Callable[[Place, FakeClock, list[str]], Job],
) -> None:
    job = accepted(place, TEXTS)
    place.work_off()
    duty = place.assembly()
    ended = assembled(place, job, duty)
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
    """The bytes of every file of every output."""
    files = [*place.bucket.rglob("out/*"), *(place.bucket.parent / "objects" / "files").rglob("*")]
    return {str(path): path.stat().st_mtime_ns for path in files if path.is_file()}
