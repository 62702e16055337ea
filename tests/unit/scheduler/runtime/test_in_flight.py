"""How many webhook attempts may be under way, in all and of one tenant."""

import random

import pytest

from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.testing import STARTS_AT
from scheduler.runtime.in_flight import InFlightLimiter


def a_delivery(number: int, tenant_id: str) -> Delivery:
    return Delivery(
        id=f"dlv_{number}",
        event_id=f"evt_{number}",
        tenant_id=tenant_id,
        job_id="job_1",
        event_type="job.succeeded",
        url="https://example.com/",
        body="{}",
        state=DeliveryState.PENDING,
        attempts=0,
        next_at=STARTS_AT,
        created_at=STARTS_AT,
    )


def test_one_tenant_cannot_take_every_slot() -> None:
    limiter = InFlightLimiter(slots_max=4, slots_per_tenant_max=2)
    greedy = [limiter.acquire(a_delivery(number, "greedy")) for number in range(3)]
    assert greedy == [True, True, False]
    assert limiter.full_tenants() == ["greedy"]
    assert limiter.acquire(a_delivery(9, "modest"))


@pytest.mark.parametrize("hanging", [1, 2, 4, 6])
def test_tenants_whose_receivers_all_hang_leave_a_slot_for_another(hanging: int) -> None:
    """In whatever order their attempts end and begin."""
    draw = random.Random(hanging)
    limiter, under_way = InFlightLimiter(slots_max=32, slots_per_tenant_max=8), []
    for number in range(500):
        tried = a_delivery(number, f"hanging-{draw.randrange(hanging)}")
        if limiter.acquire(tried):
            under_way.append(tried)
        elif under_way and draw.random() < 0.5:
            limiter.release(under_way.pop(draw.randrange(len(under_way))), DeliveryState.PENDING)
        modest = a_delivery(number, "modest")
        assert limiter.acquire(modest)
        limiter.release(modest, DeliveryState.DELIVERED)


def test_no_slot_is_left_until_one_is_released() -> None:
    limiter = InFlightLimiter(slots_max=2, slots_per_tenant_max=2)
    first, second, third = (a_delivery(number, f"tenant{number}") for number in range(3))
    assert limiter.acquire(first)
    assert limiter.acquire(second)
    assert limiter.is_full
    assert not limiter.acquire(third)
    limiter.release(first, DeliveryState.DELIVERED)
    assert limiter.acquire(third)


def test_outcomes_are_returned_once() -> None:
    limiter = InFlightLimiter(slots_max=2, slots_per_tenant_max=2)
    delivery = a_delivery(1, "tenant")
    limiter.acquire(delivery)
    limiter.release(delivery, DeliveryState.DEAD)
    assert limiter.take_outcomes() == {DeliveryState.DEAD: 1}
    assert limiter.take_outcomes() == {}
    assert limiter.wait_until_idle(timeout_s=0)
