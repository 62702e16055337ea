"""A bulk job begins with its first claim, which is an event."""

import pytest

from nightshift.jobs import Webhook
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.helpers.fakes import MODEL, TTL_S, a_spec, claimed, planned
from tests.integration.store.racing import at_once, both_databases

ALL = 10


def types(store: Store, job_id: str) -> list[str]:
    with store.snapshot() as tx:
        return [event.type for event in tx.events.after("default", job_id, 0, ALL)]


def test_the_first_claim_of_a_job_is_an_event_and_the_next_is_none(store: Store) -> None:
    job = planned(store, shards=2)
    assert claimed(store).begins_job
    assert not claimed(store).begins_job

    with store.snapshot() as tx:
        *_, event = tx.events.after("default", job.id, 0, ALL)
    assert types(store, job.id) == ["job.queued", "job.planned", "job.running"]
    assert event.data["status"] == "running"


@both_databases
def test_of_two_first_claims_at_the_same_moment_one_begins_the_job(store: Store) -> None:
    job = planned(store, shards=2)

    def claim() -> bool:
        bulk_claim = store.run(lambda tx: transitions.claim_bulk(tx, "worker", [MODEL], tx.now(), TTL_S))
        return bulk_claim is not None and bulk_claim.begins_job

    assert sorted(at_once(claim, claim)) == [False, True]
    assert types(store, job.id).count("job.running") == 1


@pytest.mark.parametrize(
    ("events", "owed"), [((), []), (("job.succeeded",), []), (("job.running",), ["job.running"])]
)
def test_it_is_owed_to_a_webhook_that_names_it(
    store: Store, events: tuple[str, ...], owed: list[str]
) -> None:
    job = planned(store, spec=a_spec(webhook=Webhook("https://example.com/hook", events)))
    claimed(store)

    with store.snapshot() as tx:
        deliveries = tx.deliveries.list("default", limit=ALL)
    assert [delivery.event_type for delivery in deliveries if delivery.job_id == job.id] == owed
