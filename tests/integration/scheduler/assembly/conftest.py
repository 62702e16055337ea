"""Jobs of every kind up to their last row, and one pass of the duty that assembles them."""

import pytest

from nightshift.jobs import Job, JsonObject, StopReason
from nightshift.lifecycle.transitions import request_stop
from scheduler.duties.assembly import Assembly
from tests.helpers.fakes import MODEL, FakeClock
from tests.integration.scheduler.scheduling import IDLE_S, Place, a_line, jsonl

TEMPLATE = {"model": MODEL, "messages": [{"role": "user", "content": "{{text}}"}]}


@pytest.fixture
def duty(place: Place) -> Assembly:
    return place.assembly()


def assembled(place: Place, job: Job, clock: FakeClock, duty: Assembly | None = None) -> Job:
    """Parts are written, then one pass, and what it started is over; once more where a part came with it."""
    duty = duty or place.assembly()
    for _ in range(2):
        place.write_parts(clock.now)
        duty.run_once(clock.now)
        assert duty.wait_until_idle(IDLE_S)
        with place.store.snapshot() as tx:
            if not tx.parts.has_claimable(clock.now):
                break
    return place.job(job)


def planned(place: Place, job: Job, clock: FakeClock) -> Job:
    duty = place.planning()
    duty.run_once(clock.now)
    assert duty.wait_until_idle(IDLE_S)
    planned_job = place.job(job)
    assert planned_job.planned_at is not None, planned_job.errors
    return planned_job


def a_batch(place: Place, clock: FakeClock, texts: list[str], **wishes: object) -> Job:
    lines = [a_line(f"r{number}", text) for number, text in enumerate(texts)]
    return planned(place, place.batch(jsonl(lines), **wishes), clock)


def a_native_job(place: Place, clock: FakeClock, texts: list[str], **wishes: object) -> Job:
    (place.bucket / "in.jsonl").write_bytes(jsonl({"text": text} for text in texts))
    wishes = {"template": TEMPLATE, **wishes}
    return planned(place, place.native(model=MODEL, **wishes), clock)


def stop(place: Place, job: Job, reason: StopReason) -> None:
    with place.store.transaction() as tx:
        assert request_stop(tx, job, reason, tx.now())


def ids(lines: list[JsonObject]) -> list[str]:
    return [line["custom_id"] for line in lines]


TEXTS = [f"text {number}" for number in range(12)]
