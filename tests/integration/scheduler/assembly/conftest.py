"""Jobs of every kind up to their last row, and one pass of the duty that assembles them."""

import pytest

from nightshift.jobs import BulkClaim, Job, JsonObject, StopReason
from nightshift.lifecycle.recovery import Verdict, recover
from nightshift.lifecycle.transitions import request_stop
from scheduler.duties.assembly import Assembly
from tests.helpers.fakes import MODEL, claimed
from tests.integration.scheduler.scheduling import TEMPLATE, Place, a_line, jsonl


@pytest.fixture
def duty(place: Place) -> Assembly:
    return place.assembly()


def assembled(place: Place, job: Job, duty: Assembly | None = None) -> Job:
    """Parts are written, then one pass, and what it started is over; once more where a part came with it."""
    duty = duty or place.assembly()
    for _ in range(2):
        place.write_parts()
        place.run(duty)
        with place.store.snapshot() as tx:
            if not tx.parts.has_claimable(place.store.now()):
                break
    return place.job(job)


def planned(place: Place, job: Job) -> Job:
    planned_job = place.plan(job)
    assert planned_job.planned_at is not None, planned_job.errors
    return planned_job


def a_batch(place: Place, texts: list[str], **wishes: object) -> Job:
    lines = [a_line(f"r{number}", text) for number, text in enumerate(texts)]
    return planned(place, place.batch(jsonl(lines), **wishes))


def a_native_job(place: Place, texts: list[str], **wishes: object) -> Job:
    (place.bucket / "in.jsonl").write_bytes(jsonl({"text": text} for text in texts))
    wishes = {"template": TEMPLATE, **wishes}
    return planned(place, place.native(model=MODEL, **wishes))


def stop(place: Place, job: Job, reason: StopReason) -> None:
    with place.store.transaction() as tx:
        assert request_stop(tx, job, reason, tx.now())


def ids(lines: list[JsonObject]) -> list[str]:
    return [line["custom_id"] for line in lines]


TEXTS = [f"text {number}" for number in range(12)]


def give_up(place: Place, claim: BulkClaim) -> None:
    """Its worker is gone, and the shard is not run again."""
    with place.store.transaction() as tx:
        [abandoned] = tx.leases.of_worker(claim.lease.worker_id, 10)
        recover(tx, abandoned, Verdict.GIVE_UP, tx.now())


def stop_in_the_middle(place: Place, job: Job, reason: StopReason) -> None:
    """A shard has ended, one is stopped when some of its rows are listed, and the others were never read."""
    place.work_off(shards=1)
    half = claimed(place.store)
    place.commit(half, 0, place.results(half)[1:])
    stop(place, job, reason)
    with place.store.transaction() as tx:
        assert tx.shards.stop_held(half.lease)
