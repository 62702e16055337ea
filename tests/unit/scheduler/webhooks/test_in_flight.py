"""How many webhook attempts may be under way, in all and of one tenant."""

import random

import pytest

from nightshift.outbound.webhooks import Delivery, DeliveryState
from scheduler.webhooks.in_flight import AttemptOutcome, InFlightLimiter, SlotLimits, webhook_destination
from tests.helpers import fakes
from tests.helpers.fakes import STARTS_AT, a_job


def limiter_with(*, in_all: int, per_tenant: int) -> InFlightLimiter:
    return InFlightLimiter(
        SlotLimits(in_all, per_tenant, per_tenant_unanswered=per_tenant, per_destination=per_tenant)
    )


def a_delivery(number: int, tenant_id: str, url: str = "https://example.com/") -> Delivery:
    return fakes.a_delivery(a_job(), id=f"dlv_{number}", tenant_id=tenant_id, url=url)


def test_one_tenant_cannot_take_every_slot() -> None:
    limiter = limiter_with(in_all=4, per_tenant=2)
    greedy = [limiter.acquire(a_delivery(number, "greedy"), answers=True) for number in range(3)]
    assert greedy == [True, True, False]
    assert limiter.full_tenants() == ["greedy"]
    assert limiter.acquire(a_delivery(9, "modest"), answers=True)


@pytest.mark.parametrize("hanging", [1, 2, 4, 6])
def test_tenants_whose_receivers_all_hang_leave_a_slot_for_another(hanging: int) -> None:
    """No limit is exceeded in whatever order attempts end and begin."""
    draw = random.Random(hanging)
    limiter, under_way = limiter_with(in_all=32, per_tenant=8), []
    for number in range(500):
        tried = a_delivery(number, f"hanging-{draw.randrange(hanging)}")
        if limiter.acquire(tried, answers=True):
            under_way.append(tried)
        elif under_way and draw.random() < 0.5:
            limiter.release(under_way.pop(draw.randrange(len(under_way))), None)
        modest = a_delivery(number, "modest")
        assert limiter.acquire(modest, answers=True)
        limiter.release(modest, None)


def test_no_slot_is_left_until_one_is_released() -> None:
    limiter = limiter_with(in_all=2, per_tenant=2)
    first, second, third = (a_delivery(number, f"tenant{number}") for number in range(3))
    assert limiter.acquire(first, answers=True)
    assert limiter.acquire(second, answers=True)
    assert limiter.is_full
    assert not limiter.acquire(third, answers=True)
    limiter.release(first, None)
    assert limiter.acquire(third, answers=True)


def test_outcomes_are_returned_once() -> None:
    limiter = limiter_with(in_all=2, per_tenant=2)
    delivery = a_delivery(1, "tenant")
    limiter.acquire(delivery, answers=True)
    outcome = AttemptOutcome(
        webhook_destination(delivery), DeliveryState.DEAD, answered=None, ended_at=STARTS_AT
    )
    assert not limiter.has_outcomes
    limiter.release(delivery, outcome)
    assert limiter.has_outcomes
    assert limiter.take_outcomes() == [outcome]
    assert limiter.take_outcomes() == []
    assert not limiter.has_outcomes
    assert limiter.wait_until_idle(timeout_s=0)


def test_a_destination_has_one_slot_until_it_is_known_to_answer() -> None:
    limiter = InFlightLimiter(SlotLimits(per_destination=3))
    assert [limiter.acquire(a_delivery(number, "tenant"), answers=False) for number in range(2)] == [
        True,
        False,
    ]
    more = [limiter.acquire(a_delivery(number, "tenant"), answers=True) for number in range(2, 5)]
    assert more == [True, True, False]


def test_destinations_that_do_not_answer_leave_their_tenant_slots_for_one_that_does() -> None:
    limiter = InFlightLimiter(SlotLimits(in_all=64, per_tenant=4, per_tenant_unanswered=3))
    hanging = [a_delivery(number, "tenant", f"https://h{number}.example/") for number in range(4)]
    assert [limiter.acquire(delivery, answers=False) for delivery in hanging] == [True, True, True, False]
    assert limiter.acquire(a_delivery(9, "tenant"), answers=True)
    limiter.release(hanging[0], None)
    assert limiter.acquire(hanging[3], answers=False)
