"""Webhooks: signed so that the official libraries verify them, retried on schedule."""

import base64
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
from openai import OpenAI

from nightshift.jobs import Counts, Face, JobState
from nightshift.outbound.webhook_events import event_body
from nightshift.outbound.webhooks import (
    ATTEMPTS_MAX,
    RETRY_DELAYS_S,
    InvalidSecret,
    InvalidSignature,
    headers,
    new_secret,
    retry_delay_s,
    secret_key,
    signature,
    verify,
)
from tests.helpers.fakes import STARTS_AT, a_delivery, a_job, an_attempt

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW_S = 1_770_000_000
BODY = '{"type":"job.succeeded","text":"ünïcode ☂"}'


def signed(**overrides: str) -> dict[str, str]:
    return {**headers("evt_1", NOW_S, BODY, [SECRET]), **overrides}


# -- signatures ----------------------------------------------------------------------------------------


def test_we_and_the_reference_library_verify_what_the_other_signs() -> None:
    reference, now_s = standardwebhooks.Webhook(SECRET), int(time.time())
    assert reference.verify(BODY, headers("evt_1", now_s, BODY, [SECRET])) == json.loads(BODY)

    theirs = reference.sign("evt_1", datetime.fromtimestamp(NOW_S, UTC), BODY)
    assert theirs == signature(SECRET, "evt_1", NOW_S, BODY)
    verify(BODY, signed(**{"webhook-signature": theirs}), SECRET, NOW_S)


def test_the_official_client_unwraps_the_event_of_a_batch() -> None:
    job = a_job(id="job_abc", face=Face.OPENAI, state=JobState.SUCCEEDED, counts=Counts(3, 2, 1))
    body = event_body("evt_1", "batch.completed", job, STARTS_AT)
    sent = headers("evt_1", int(time.time()), body, [SECRET])

    with OpenAI(api_key="none", webhook_secret=SECRET) as client:
        event = client.webhooks.unwrap(body, sent)

    assert event.type == "batch.completed"
    assert event.id == "evt_1"
    assert event.data.id == "batch_abc"


def test_a_rotated_secret_gives_two_signatures_and_either_receiver_is_content() -> None:
    new = new_secret()
    sent = headers("evt_1", NOW_S, BODY, [new, SECRET])

    assert len(sent["webhook-signature"].split(" ")) == 2
    verify(BODY, sent, SECRET, NOW_S)
    verify(BODY, sent, new, NOW_S)


@pytest.mark.parametrize("seconds_apart", [-300, 0, 300])
def test_a_webhook_within_the_tolerance_is_accepted(seconds_apart: int) -> None:
    verify(BODY, signed(), SECRET, NOW_S + seconds_apart)


@pytest.mark.parametrize(
    ("body", "sent", "secret", "now_s"),
    [
        pytest.param(BODY + " ", signed(), SECRET, NOW_S, id="another body"),
        pytest.param(BODY, signed(**{"webhook-id": "evt_2"}), SECRET, NOW_S, id="another event"),
        pytest.param(BODY, signed(**{"webhook-timestamp": str(NOW_S + 1)}), SECRET, NOW_S, id="another time"),
        pytest.param(BODY, signed(), new_secret(), NOW_S, id="another secret"),
        pytest.param(BODY, signed(), SECRET, NOW_S + 301, id="too old"),
        pytest.param(BODY, signed(), SECRET, NOW_S - 301, id="from the future"),
        pytest.param(BODY, signed(**{"webhook-signature": ""}), SECRET, NOW_S, id="no signature"),
        pytest.param(BODY, signed(**{"webhook-signature": "v1,ünïcode"}), SECRET, NOW_S, id="not base64"),
        pytest.param(BODY, signed(**{"webhook-timestamp": "noon"}), SECRET, NOW_S, id="no time"),
        pytest.param(BODY, {}, SECRET, NOW_S, id="no headers"),
    ],
)
def test_a_webhook_that_is_not_what_was_sent_is_refused(
    body: str, sent: dict[str, str], secret: str, now_s: int
) -> None:
    with pytest.raises(InvalidSignature):
        verify(body, sent, secret, now_s)


# -- secrets -------------------------------------------------------------------------------------------


def test_a_secret_has_24_to_64_bytes() -> None:
    for size in (24, 64):
        assert secret_key("whsec_" + base64.b64encode(bytes(size)).decode()) == bytes(size)
    assert len(secret_key(new_secret())) == 32
    assert new_secret() != new_secret()


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        "whsec_not base64 at all!!",
        "whsec_ünïcode",
    ],
)
def test_any_other_secret_is_refused(secret: str) -> None:
    with pytest.raises(InvalidSecret, match="24 to 64"):
        secret_key(secret)


# -- retries -------------------------------------------------------------------------------------------


def failed(attempt_no: int, **overrides: Any) -> Any:
    delivery = a_delivery(a_job(), attempts=attempt_no - 1)
    return an_attempt(delivery, **{"status_code": 500, **overrides})


def test_retries_follow_the_schedule_for_about_three_days() -> None:
    delays = [retry_delay_s(failed(number), jitter=0) for number in range(1, ATTEMPTS_MAX)]

    assert delays == list(RETRY_DELAYS_S[1:])
    assert sum(RETRY_DELAYS_S) / 3600 == pytest.approx(75.6, abs=0.1)


def test_there_is_no_retry_after_the_last_attempt_or_where_the_receiver_is_gone() -> None:
    assert retry_delay_s(failed(ATTEMPTS_MAX), jitter=0) is None
    assert retry_delay_s(failed(1, status_code=410), jitter=0) is None


@pytest.mark.parametrize(("asked_s", "delay_s"), [(None, 300), (10, 300), (600, 600), (10**9, 86_400)])
def test_a_receiver_can_ask_for_a_longer_wait_within_a_day(asked_s: int | None, delay_s: int) -> None:
    assert retry_delay_s(failed(2, retry_after_s=asked_s), jitter=0) == delay_s
    assert retry_delay_s(failed(2), jitter=0.999) == pytest.approx(300 * 1.0999), "jitter adds a little"


@pytest.mark.parametrize(
    ("status_code", "delivered"),
    [(200, True), (299, True), (199, False), (301, False), (500, False), (None, False)],
)
def test_only_2xx_is_delivered(status_code: int | None, delivered: bool) -> None:
    assert an_attempt(a_delivery(a_job()), status_code=status_code).delivered is delivered
