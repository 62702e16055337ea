"""Whole transactions: what becomes true at once when a job ends, and whom it owes the news."""

import json

import pytest

from nightshift.jobs import Counts, InputError, JobState
from nightshift.lifecycle import transitions
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store
from tests.helpers.fakes import FakeClock, claim, submit
from tests.integration.store.racing import at_once, both_databases
from tests.integration.store.watching import HOOK, events, fetch, finalizing, finish, owed, with_webhook


@pytest.mark.parametrize("state", [state for state in JobState if state.is_terminal])
def test_a_job_ends_once_with_its_final_counts(store: Store, clock: FakeClock, state: JobState) -> None:
    job = finalizing(store)

    assert finish(store, job, state, Counts(10, 7, 3)) is True
    ended = fetch(store, job)
    clock.advance(seconds=1)
    for other in JobState:
        assert finish(store, job, other, Counts(10, 10, 0)) is False

    assert (ended.state, ended.counts) == (state, Counts(10, 7, 3))
    assert fetch(store, job) == ended
    assert events(store, job).count(f"job.{state}") == 1


@both_databases
def test_of_two_that_end_a_job_at_the_same_moment_one_does_and_owes_the_webhook(store: Store) -> None:
    job = finalizing(store, **with_webhook())

    ended = at_once(
        lambda: finish(store, job, JobState.SUCCEEDED), lambda: finish(store, job, JobState.FAILED)
    )

    assert sorted(ended) == [False, True]
    assert len(owed(store, job)) == 1
    assert len([event for event in events(store, job) if event in ("job.succeeded", "job.failed")]) == 1


def test_the_webhook_is_owed_with_the_end_and_says_how_it_went(store: Store, clock: FakeClock) -> None:
    job = finalizing(store, **with_webhook())
    now = clock.advance(seconds=5)

    finish(store, job, JobState.SUCCEEDED, Counts(10, 7, 3))

    [delivery] = owed(store, job)
    assert (delivery.state, delivery.attempts, delivery.next_at) == (DeliveryState.PENDING, 0, now)
    assert (delivery.url, delivery.event_type) == (HOOK, "job.succeeded")
    assert json.loads(delivery.body) == {
        "id": delivery.event_id,
        "object": "event",
        "created_at": int(now.timestamp()),
        "type": "job.succeeded",
        "data": {"id": job.id, "counts": {"total": 10, "succeeded": 7, "failed": 3}},
    }


@pytest.mark.parametrize(
    ("wanted", "state", "told"),
    [
        ((), JobState.FAILED, True),
        (("job.failed",), JobState.FAILED, True),
        (("batch.failed",), JobState.FAILED, True),
        (("job.succeeded",), JobState.FAILED, False),
        (("job.succeeded", "job.cancelled"), JobState.CANCELLED, True),
    ],
)
def test_only_events_that_were_asked_for_are_owed(
    store: Store, wanted: tuple[str, ...], state: JobState, told: bool
) -> None:
    job = finalizing(store, **with_webhook(*wanted))

    finish(store, job, state)

    assert len(owed(store, job)) == int(told)


def test_a_job_that_never_ran_cannot_have_succeeded_and_knows_why_it_failed_and_its_files(
    store: Store,
) -> None:
    job = submit(store)
    errors = (InputError("invalid_json_line", "This line is not JSON.", line=3),)
    files = {"output_file_id": "file-out", "error_file_id": "file-err"}

    assert finish(store, job, JobState.SUCCEEDED) is False
    assert fetch(store, job).state is JobState.QUEUED
    with store.transaction() as tx:
        assert transitions.finish(
            tx, job, JobState.FAILED, tx.now(), counts=Counts(0), errors=errors, **files
        )

    ended = fetch(store, job)
    assert (ended.errors, ended.output_file_id, ended.error_file_id) == (errors, "file-out", "file-err")
    assert owed(store, job) == [], "it has no webhook"
    assert claim(store) is None
