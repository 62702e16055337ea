"""The state of a webhook endpoint after an attempt, and which secrets sign. Pure."""

from datetime import timedelta

import pytest

from nightshift.outbound.webhook_endpoints import FAILING_MAX, DisabledReason, WebhookEndpoint
from tests.helpers.fakes import STARTS_AT, a_delivery, a_job, a_webhook_endpoint, an_attempt

DAY = timedelta(days=1)


def after(endpoint: WebhookEndpoint, status: int | None, in_time: timedelta) -> WebhookEndpoint:
    made = an_attempt(a_delivery(a_job()), status_code=status)
    return endpoint.after_attempt(made, STARTS_AT + in_time)


@pytest.mark.parametrize("status", [None, 301, 404, 429, 500])
def test_five_days_of_failures_disable_it(status: int | None) -> None:
    failing = after(a_webhook_endpoint(), status, timedelta(0))
    assert (failing.is_enabled, failing.failing_since) == (True, STARTS_AT)

    still = after(failing, status, FAILING_MAX - timedelta(seconds=1))
    assert (still.is_enabled, still.failing_since) == (True, STARTS_AT)

    over = after(still, status, FAILING_MAX)
    assert (over.disabled_at, over.disabled_reason) == (STARTS_AT + 5 * DAY, DisabledReason.FAILING)


def test_one_success_begins_the_five_days_again() -> None:
    failing = after(a_webhook_endpoint(), 500, timedelta(0))
    well = after(failing, 204, 4 * DAY)
    assert well.failing_since is None
    assert after(well, 500, 6 * DAY).is_enabled


def test_410_disables_it_at_once_and_its_first_reason_stays() -> None:
    assert after(a_webhook_endpoint(), 410, timedelta(0)).disabled_reason is DisabledReason.GONE

    disabled = a_webhook_endpoint().disabled(DisabledReason.REQUESTED, STARTS_AT)
    assert after(disabled, 410, DAY) == disabled
    assert not after(disabled, 200, DAY).is_enabled


def test_a_rotated_secret_signs_beside_the_new_one_until_its_time_is_over() -> None:
    until = STARTS_AT + DAY
    endpoint = a_webhook_endpoint(secret=b"new", previous_secret=b"old", previous_secret_until=until)
    assert endpoint.secrets(until - timedelta(seconds=1)) == [b"new", b"old"]
    assert endpoint.secrets(until) == [b"new"]
    assert a_webhook_endpoint(secret=b"new").secrets(STARTS_AT) == [b"new"]


def test_no_secret_is_in_its_text() -> None:
    assert "hush" not in repr(a_webhook_endpoint(secret=b"hush", previous_secret=b"hush"))
