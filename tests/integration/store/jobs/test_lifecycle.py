"""Whole transactions: what becomes true at once when a job is planned, begins, is answered."""

import pytest

from nightshift.jobs import Counts, InputError, JobKind, JobState, Usage, Webhook
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.helpers.fakes import (
    FakeClock,
    a_spec,
    an_answer,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit_online,
)
from tests.integration.store.racing import at_once, both_databases
from tests.integration.store.watching import HOOK, events, fetch, owed, rings_waiting, with_webhook


def test_a_large_job_rings_a_bounded_number_of_times(store: Store) -> None:
    planned(store, shards=1200)  # more than one INSERT statement holds

    assert len(rings_waiting(store)) == transitions.BULK_RINGS_MAX
    with store.snapshot() as tx:
        assert tx.shards.queued() == {JobKind.BULK: 1200}


# -- the first claim -----------------------------------------------------------------------------------


@both_databases
def test_of_two_first_claims_at_the_same_moment_one_begins_the_job(store: Store) -> None:
    job = planned(store, shards=3)

    def claim() -> bool:
        return claimed(store).begins_job

    assert sorted(at_once(claim, claim)) == [False, True]
    assert not claim()
    assert events(store, job) == ["job.queued", "job.planned", "job.running"]


@pytest.mark.parametrize(
    ("wanted", "told"), [((), []), (("job.succeeded",), []), (("job.running",), ["job.running"])]
)
def test_that_a_job_runs_is_owed_to_a_webhook_that_names_it(
    store: Store, wanted: tuple[str, ...], told: list[str]
) -> None:
    job = planned(store, spec=a_spec(webhook=Webhook(HOOK, wanted)))
    claimed(store)

    assert [delivery.event_type for delivery in owed(store, job)] == told


# -- rows ----------------------------------------------------------------------------------------------


def test_the_rows_of_segments_add_up_to_the_job(store: Store) -> None:
    job = planned(store, shards=2, rows_total=12)
    first, second = claimed(store).lease, claimed(store).lease

    assert commit_rows(store, first, seq=0, rows=4, failed=1)
    assert commit_rows(store, second, seq=0, rows=5)
    assert commit_rows(store, first, seq=1, rows=3)

    counted = fetch(store, job)
    assert counted.counts == Counts(total=12, succeeded=11, failed=1)
    assert counted.usage == Usage(prompt_tokens=120, completion_tokens=60, cached_tokens=12)
    assert events(store, job)[2:] == ["job.running", *["job.progress"] * 3]


# -- online answers ------------------------------------------------------------------------------------


def test_an_answer_ends_its_job(store: Store, clock: FakeClock) -> None:
    request = submit_online(store, **with_webhook())
    claim = claimed_online(store, request.shard_id)
    clock.advance(seconds=2)

    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(usage=Usage(7, 3, 2)), tx.now())

    ended = fetch(store, request.job)
    assert ended.state is JobState.SUCCEEDED
    assert ended.finished_at == clock.now
    assert ended.counts == Counts(1, 1, 0)
    assert ended.usage == Usage(7, 3, 2)
    assert ended.errors == ()
    assert events(store, ended) == ["job.queued", "job.succeeded"]
    assert [delivery.event_type for delivery in owed(store, ended)] == ["job.succeeded"]


def test_an_error_for_an_answer_fails_its_job_and_says_why(store: Store) -> None:
    request = submit_online(store)
    claim = claimed_online(store, request.shard_id)

    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(400), tx.now())

    ended = fetch(store, request.job)
    assert ended.state is JobState.FAILED
    assert ended.counts == Counts(1, 0, 1)
    assert ended.errors == (InputError("invalid_value", "The prompt is too long."),)


@both_databases
def test_a_request_is_answered_once(store: Store) -> None:
    request = submit_online(store)
    claim = claimed_online(store, request.shard_id)

    def answer(name: str) -> bool:
        with store.transaction() as tx:
            return transitions.record_answer(tx, claim, an_answer(body={"choices": [name]}), tx.now())

    recorded = at_once(lambda: answer("a"), lambda: answer("b"))

    assert sorted(recorded) == [False, True]
    with store.snapshot() as tx:
        kept = tx.shards.online_result("default", request.job.id)
        assert kept is not None
        assert kept.body == {"choices": ["ab"[recorded.index(True)]]}
