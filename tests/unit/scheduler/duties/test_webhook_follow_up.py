"""What becomes of a delivery after an attempt, and who may have how many under way. Pure."""

import random
from datetime import timedelta

import pytest

from nightshift.outbound.webhooks import ATTEMPTS_MAX, Delivery, DeliveryAttempt, DeliveryState
from nightshift.testing import STARTS_AT
from scheduler.duties.webhook_delivery import follow_up, retry_after_s
from scheduler.runtime.in_flight import Flights


def an_attempt(status: int | None, *, attempt_no: int = 1, retry_after: int | None = None) -> DeliveryAttempt:
    return DeliveryAttempt(
        attempt_no=attempt_no,
        started_at=STARTS_AT,
        latency_ms=3,
        status_code=status,
        error=None if status else "ConnectError",
        response_head=None,
        retry_after_s=retry_after,
    )


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


@pytest.mark.parametrize("status", [200, 204, 299])
def test_any_2xx_is_a_delivery(status: int) -> None:
    assert follow_up(an_attempt(status), False, STARTS_AT, 0.0).state is DeliveryState.DELIVERED


@pytest.mark.parametrize("status", [None, 301, 302, 400, 404, 429, 500, 503])
def test_anything_else_is_tried_again_on_schedule(status: int | None) -> None:
    step = follow_up(an_attempt(status), False, STARTS_AT, 0.0)
    assert (step.state, step.next_at - STARTS_AT) == (DeliveryState.PENDING, timedelta(seconds=5))


def test_a_receiver_that_asks_for_patience_gets_it() -> None:
    step = follow_up(an_attempt(503, retry_after=120), False, STARTS_AT, 0.0)
    assert step.next_at - STARTS_AT == timedelta(seconds=120)


def test_jitter_spreads_the_next_tries() -> None:
    step = follow_up(an_attempt(500, attempt_no=2), False, STARTS_AT, 0.5)
    assert step.next_at - STARTS_AT == timedelta(seconds=300 * 1.05)


@pytest.mark.parametrize(
    ("made", "is_blocked"),
    [(an_attempt(410), False), (an_attempt(500, attempt_no=ATTEMPTS_MAX), False), (an_attempt(None), True)],
    ids=["gone", "exhausted", "blocked"],
)
def test_what_can_never_be_delivered_is_a_dead_letter(made: DeliveryAttempt, is_blocked: bool) -> None:
    assert follow_up(made, is_blocked, STARTS_AT, 0.0).state is DeliveryState.DEAD


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("Sat, 31 Jan 2026 23:32:00 GMT", 120),
        ("Sat, 31 Jan 2026 20:00:00 GMT", 0),
        ("soon", None),
        ("-5", None),
        ("9" * 30, None),
        ("", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", None),
        ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", None),
        ("Sat, 31 Jan 2026 23:32:00 +9999999999999", None),
        ("Sat, 31 Jan 2026 23:32:00 -0000", None),  # of no zone
    ],
)
def test_retry_after_is_understood_in_both_its_spellings(value: str, seconds: int | None) -> None:
    assert retry_after_s({"retry-after": value}, STARTS_AT) == seconds


def test_one_tenant_cannot_fill_the_room() -> None:
    flights = Flights(places_max=4, places_per_tenant_max=2)
    greedy = [flights.admit(a_delivery(number, "greedy")) for number in range(3)]
    assert greedy == [True, True, False]
    assert flights.full_tenants() == ["greedy"]
    assert flights.admit(a_delivery(9, "modest"))


@pytest.mark.parametrize("hanging", [1, 2, 4, 6])
def test_tenants_whose_receivers_all_hang_leave_room_for_another(hanging: int) -> None:
    """However their attempts end and begin again."""
    draw = random.Random(hanging)
    flights, under_way = Flights(places_max=32, places_per_tenant_max=8), []
    for number in range(500):
        tried = a_delivery(number, f"hanging-{draw.randrange(hanging)}")
        if flights.admit(tried):
            under_way.append(tried)
        elif under_way and draw.random() < 0.5:
            flights.land(under_way.pop(draw.randrange(len(under_way))), DeliveryState.PENDING)
        modest = a_delivery(number, "modest")
        assert flights.admit(modest)
        flights.land(modest, DeliveryState.DELIVERED)


def test_the_room_has_an_end_and_landing_makes_room_again() -> None:
    flights = Flights(places_max=2, places_per_tenant_max=2)
    first, second, third = (a_delivery(number, f"tenant{number}") for number in range(3))
    assert flights.admit(first)
    assert flights.admit(second)
    assert flights.is_full
    assert not flights.admit(third)
    flights.land(first, DeliveryState.DELIVERED)
    assert flights.admit(third)


def test_outcomes_are_told_once() -> None:
    flights = Flights(places_max=2, places_per_tenant_max=2)
    delivery = a_delivery(1, "tenant")
    flights.admit(delivery)
    flights.land(delivery, DeliveryState.DEAD)
    assert flights.take_outcomes() == {DeliveryState.DEAD: 1}
    assert flights.take_outcomes() == {}
    assert flights.wait_until_none(timeout_s=0)
