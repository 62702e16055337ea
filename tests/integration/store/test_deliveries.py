"""Deliveries: each is taken by one, each attempt is recorded once, and what follows from it is done."""

from datetime import timedelta
from typing import Any

import pytest

from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import DeliveryFilters, Owed
from tests.helpers.fakes import FakeClock, a_delivery, an_attempt, submit
from tests.integration.store.racing import at_once, both_databases

RESERVED = timedelta(seconds=30)


@pytest.fixture
def delivery(store: Store) -> Delivery:
    """A delivery that is due."""
    return owe(store)


def owe(store: Store, tenant_id: str = "default", **fields: Any) -> Delivery:
    job = submit(store, tenant_id=tenant_id)
    with store.transaction() as tx:
        new = a_delivery(job, next_at=tx.now(), created_at=tx.now(), **fields)
        tx.deliveries.insert(new)
    return new


def due(store: Store) -> list[Delivery]:
    with store.snapshot() as tx:
        return list(tx.deliveries.due(tx.now(), limit=10))


def reserve(store: Store, due: Delivery) -> bool:
    with store.transaction() as tx:
        return tx.deliveries.reserve(due, tx.now() + RESERVED)


def record(store: Store, owed: Delivery, state: DeliveryState, status_code: int | None = 200) -> bool:
    with store.transaction() as tx:
        attempt = an_attempt(owed, status_code=status_code, started_at=tx.now())
        return tx.deliveries.record(owed, attempt, state, next_at=tx.now() + timedelta(minutes=5))


def test_of_each_tenant_the_longest_waiting_is_due_before_any_tenants_second(
    store: Store, clock: FakeClock
) -> None:
    flood = [owe(store, "flood") for _ in range(3)]
    clock.advance(seconds=1)
    modest = owe(store, "modest")

    assert [delivery.id for delivery in due(store)][:2] == [min(delivery.id for delivery in flood), modest.id]
    assert {delivery.id for delivery in due(store)} == {modest.id, *(delivery.id for delivery in flood)}


def test_of_a_tenant_each_urls_first_event_is_due_before_any_ones_second(
    store: Store, clock: FakeClock
) -> None:
    failed = owe(store, url="https://failed.example/", attempts=3)
    flood = [owe(store, url="https://flood.example/") for _ in range(3)]
    clock.advance(seconds=1)
    modest = owe(store, url="https://modest.example/")

    assert [delivery.id for delivery in due(store)][:3] == [
        min(delivery.id for delivery in flood),
        modest.id,
        failed.id,
    ]


def test_a_tenant_or_one_destination_can_be_left_out(store: Store) -> None:
    hanging = owe(store, url="https://hanging.example/")
    same_url, other_url = owe(store, "another", url=hanging.url), owe(store, url="https://quick.example/")
    with store.snapshot() as tx:
        assert tx.deliveries.due(tx.now(), 10, except_tenants={"default"}) == [same_url]
        deliveries = tx.deliveries.due(tx.now(), 10, except_destinations=[("default", hanging.url)])
    assert {delivery.id for delivery in deliveries} == {same_url.id, other_url.id}


@both_databases
def test_a_delivery_is_reserved_once(store: Store, delivery: Delivery) -> None:
    assert sorted(at_once(*[lambda: reserve(store, delivery)] * 3)) == [False, False, True]
    assert due(store) == []


@both_databases
def test_an_attempt_is_recorded_once(store: Store, delivery: Delivery) -> None:
    """The receiver answered, we died before we noted it, and our successor's attempt was recorded first."""
    recorded = at_once(
        lambda: record(store, delivery, DeliveryState.DELIVERED),
        lambda: record(store, delivery, DeliveryState.PENDING, status_code=500),
    )

    assert sorted(recorded) == [False, True]
    with store.snapshot() as tx:
        assert len(tx.deliveries.attempts("default", delivery.id)) == 1


def test_deliveries_are_listed_newest_first_by_job_and_by_state(store: Store, clock: FakeClock) -> None:
    made = []
    for _ in range(5):
        made.append(owe(store))
        clock.advance(seconds=1)
    record(store, made[3], DeliveryState.DELIVERED)

    with store.snapshot() as tx:
        pages = [tx.deliveries.list("default", limit=2)]
        while pages[-1]:
            pages.append(tx.deliveries.list("default", limit=2, after=pages[-1][-1]))
        assert [delivery.id for page in pages for delivery in page] == [
            delivery.id for delivery in reversed(made)
        ]
        of_job = DeliveryFilters(job_id=made[1].job_id)
        assert tx.deliveries.list("default", limit=9, filters=of_job) == [made[1]]
        pending = tx.deliveries.list("default", limit=9, filters=DeliveryFilters(state=DeliveryState.PENDING))
        assert [delivery.id for delivery in pending] == [made[n].id for n in (4, 2, 1, 0)]


def test_deliveries_are_listed_by_endpoint_and_by_time(store: Store, clock: FakeClock) -> None:
    job = submit(store)
    made = []
    for number in range(4):
        endpoint_id = f"whe_{number % 2}"
        with store.transaction() as tx:
            made.append(a_delivery(job, created_at=tx.now(), endpoint_id=endpoint_id))
            tx.deliveries.insert(made[-1])
        clock.advance(seconds=1)
    start = made[0].created_at

    def listed(**filters: Any) -> list[str]:
        with store.snapshot() as tx:
            deliveries = tx.deliveries.list("default", limit=9, filters=DeliveryFilters(**filters))
            return [delivery.id for delivery in deliveries]

    second = timedelta(seconds=1)
    assert listed(endpoint_id="whe_1") == [made[3].id, made[1].id]
    assert listed(created_from=start + second, created_before=start + 3 * second) == [made[2].id, made[1].id]
    assert listed(endpoint_id="whe_0", created_from=start + second) == [made[2].id]


@both_databases
def test_a_replay_is_due_at_once_under_the_same_event_id_and_only_once(
    store: Store, clock: FakeClock, delivery: Delivery
) -> None:
    record(store, delivery, DeliveryState.DEAD, status_code=500)
    clock.advance(hours=1)

    def replay() -> bool:
        with store.transaction() as tx:
            return tx.deliveries.replay(delivery, "https://moved.example/", tx.now())

    assert sorted(at_once(replay, replay)) == [False, True]
    [again] = due(store)
    assert (again.event_id, again.url, again.attempts, again.attempts_before, again.replayed_at) == (
        delivery.event_id,
        "https://moved.example/",
        1,
        1,
        clock.now,
    )


def test_what_is_owed_is_counted_and_the_oldest_of_it_is_known(store: Store, clock: FakeClock) -> None:
    with store.snapshot() as tx:
        assert tx.deliveries.owed() == Owed(pending=0, dead=0, oldest_at=None)
    first = owe(store)
    clock.advance(seconds=60)
    owe(store)
    record(store, owe(store), DeliveryState.DELIVERED, status_code=200)
    dead = owe(store)
    record(store, dead, DeliveryState.DEAD, status_code=410)

    with store.snapshot() as tx:
        assert tx.deliveries.owed() == Owed(pending=2, dead=1, oldest_at=first.created_at)
        [attempt] = tx.deliveries.attempts("default", dead.id)
    assert attempt == an_attempt(dead, status_code=410, started_at=clock.now)
