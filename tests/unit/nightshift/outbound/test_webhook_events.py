"""Webhook events: named as on their routes, with ids and counts, for those who ask for them. Pure."""

import json

import pytest

from nightshift.jobs import Counts, Face, JobKind, JobState
from nightshift.outbound import webhook_events
from nightshift.outbound.webhook_events import (
    EVENT_TYPES,
    WILDCARDS,
    EventType,
    event_body,
    event_type,
    is_subscribed,
    wants,
)
from tests.helpers.fakes import STARTS_AT, a_job


@pytest.mark.parametrize(
    ("state", "native", "batch"),
    [
        (JobState.SUCCEEDED, "job.succeeded", "batch.completed"),
        (JobState.FAILED, "job.failed", "batch.failed"),
        (JobState.CANCELLED, "job.cancelled", "batch.cancelled"),
        (JobState.EXPIRED, "job.expired", "batch.expired"),
    ],
)
def test_an_end_is_told_in_the_words_of_the_route(state: JobState, native: str, batch: str) -> None:
    assert event_type(a_job(state=state)) == native
    assert event_type(a_job(state=state, face=Face.OPENAI)) == batch
    assert {native, batch} <= EVENT_TYPES.keys()


def test_an_event_has_ids_and_counts_and_no_results() -> None:
    job = a_job(id="job_abc", counts=Counts(10, 7, 3))

    assert json.loads(event_body("evt_1", "job.succeeded", job, STARTS_AT)) == {
        "id": "evt_1",
        "object": "event",
        "created_at": int(STARTS_AT.timestamp()),
        "type": "job.succeeded",
        "data": {"id": "job_abc", "counts": {"total": 10, "succeeded": 7, "failed": 3}},
    }


@pytest.mark.parametrize(
    ("events", "type", "wanted"),
    [
        ((), "job.failed", True),
        (("job.failed",), "job.failed", True),
        (("job.failed",), "batch.failed", True),
        (("batch.completed",), "job.succeeded", True),
        (("batch.completed",), "batch.failed", False),
        (("job.succeeded", "job.failed"), "job.expired", False),
        (("something.else",), "job.failed", False),
    ],
)
def test_either_name_of_an_event_is_understood(events: tuple[str, ...], type: str, wanted: bool) -> None:
    assert wants(events, type) is wanted


def test_a_request_that_was_answered_with_its_result_has_no_event() -> None:
    assert event_type(a_job(state=JobState.SUCCEEDED, face=Face.OPENAI, kind=JobKind.ONLINE)) is None
    assert event_type(a_job(state=JobState.SUCCEEDED, kind=JobKind.ONLINE)) == "job.succeeded"


@pytest.mark.parametrize(
    ("wishes", "type", "subscribed"),
    [
        (("batch.completed",), "batch.completed", True),
        (("batch.completed",), "job.succeeded", False),  # an endpoint is told apart by route
        (("job.*",), "job.failed", True),
        (("job.*",), "batch.failed", False),
        (("*",), "batch.expired", True),
        (("batch.failed", "job.*"), "batch.failed", True),
        ((), "job.failed", False),
    ],
)
def test_an_endpoint_gets_the_events_it_names(wishes: tuple[str, ...], type: str, subscribed: bool) -> None:
    assert is_subscribed(wishes, type) is subscribed


def test_a_type_that_is_opt_in_goes_only_to_those_that_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_events, "EVENT_TYPES", {"job.often": EventType("job.often", opt_in=True)})
    assert not any(is_subscribed((wildcard,), "job.often") for wildcard in WILDCARDS)
    assert not wants((), "job.often")
    assert is_subscribed(("job.*", "job.often"), "job.often")
    assert wants(("job.often",), "job.often")
