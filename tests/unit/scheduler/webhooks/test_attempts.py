"""A delivery's state and next time after an attempt. Pure."""

from datetime import timedelta
from typing import Any

import pytest

from nightshift.outbound.webhooks import ATTEMPTS_MAX, DeliveryAttempt, DeliveryState
from scheduler.webhooks.attempts import Sent, follow_up, retry_after_s
from tests.helpers import fakes
from tests.helpers.fakes import STARTS_AT, a_delivery, a_job


def an_attempt(status: int | None, **overrides: Any) -> DeliveryAttempt:
    return fakes.an_attempt(a_delivery(a_job()), status_code=status, **overrides)


@pytest.mark.parametrize("status", [200, 204, 299])
def test_any_2xx_is_a_delivery(status: int) -> None:
    assert follow_up(Sent(an_attempt(status), False), 0, STARTS_AT, 0.0).state is DeliveryState.DELIVERED


@pytest.mark.parametrize("status", [None, 301, 302, 400, 404, 429, 500, 503])
def test_anything_else_is_tried_again_on_schedule(status: int | None) -> None:
    step = follow_up(Sent(an_attempt(status), False), 0, STARTS_AT, 0.0)
    assert (step.state, step.next_at - STARTS_AT) == (DeliveryState.PENDING, timedelta(seconds=5))


def test_a_receiver_that_sends_retry_after_is_tried_again_then() -> None:
    step = follow_up(Sent(an_attempt(503, retry_after_s=120), False), 0, STARTS_AT, 0.0)
    assert step.next_at - STARTS_AT == timedelta(seconds=120)


def test_jitter_spreads_the_next_tries() -> None:
    step = follow_up(Sent(an_attempt(500, attempt_no=2), False), 0, STARTS_AT, 0.5)
    assert step.next_at - STARTS_AT == timedelta(seconds=300 * 1.05)


@pytest.mark.parametrize(
    ("made", "is_blocked"),
    [(an_attempt(410), False), (an_attempt(500, attempt_no=ATTEMPTS_MAX), False), (an_attempt(None), True)],
    ids=["gone", "exhausted", "blocked"],
)
def test_what_can_never_be_delivered_is_a_dead_letter(made: DeliveryAttempt, is_blocked: bool) -> None:
    assert follow_up(Sent(made, is_blocked), 0, STARTS_AT, 0.0).state is DeliveryState.DEAD


def test_a_replay_begins_the_schedule_again() -> None:
    last = an_attempt(500, attempt_no=ATTEMPTS_MAX + 1)
    step = follow_up(Sent(last, False), ATTEMPTS_MAX, STARTS_AT, 0.0)
    assert (step.state, step.next_at - STARTS_AT) == (DeliveryState.PENDING, timedelta(seconds=5))


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
