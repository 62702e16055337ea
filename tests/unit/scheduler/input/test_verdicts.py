"""Decisions of planning and assembly, without any input or output. Pure."""

from collections import Counter
from dataclasses import replace

import pytest

from nightshift.bulk.rows.inputs import InputFormat, InputObject
from nightshift.bulk.rows.surveys import with_guesses
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Counts, JobState, ShardState, StopReason, Usage
from nightshift.lifecycle.catalogue import Catalogue
from scheduler.duties.assembly import verdict
from tests.helpers.fakes import a_job, a_spec

DECODER = Model(id="chatty", kind=ModelKind.DECODER, context_length=512, revision="1")
ENCODER = Model(id="terse", kind=ModelKind.ENCODER, context_length=512, revision="1")
ALL_DONE = Counter({ShardState.DONE: 3})


@pytest.mark.parametrize(
    ("reason", "counts", "shards", "state", "code"),
    [
        (None, Counts(10, 10, 0), ALL_DONE, JobState.SUCCEEDED, None),
        (None, Counts(10, 9, 1), ALL_DONE, JobState.SUCCEEDED, None),
        (None, Counts(10, 8, 2), ALL_DONE, JobState.FAILED, "max_error_rate_exceeded"),
        (
            None,
            Counts(10, 9, 1),
            Counter({ShardState.DONE: 9, ShardState.FAILED: 1}),
            JobState.SUCCEEDED,
            None,
        ),
        (StopReason.CANCELLED, Counts(10, 5, 5), ALL_DONE, JobState.CANCELLED, None),
        (StopReason.EXPIRED, Counts(10, 0, 10), Counter(), JobState.EXPIRED, None),
        (StopReason.FAILED, Counts(10, 9, 1), ALL_DONE, JobState.FAILED, "max_error_rate_exceeded"),
    ],
)
def test_a_job_ends_as_its_rows_and_its_owner_say(
    reason: StopReason | None,
    counts: Counts,
    shards: "Counter[ShardState]",
    state: JobState,
    code: str | None,
) -> None:
    job = a_job(stop_reason=reason, spec=a_spec(max_error_rate=0.1))
    ended, errors = verdict(job, counts, shards)
    assert (ended, [error.code for error in errors]) == (state, [code] if code else [])


def test_a_job_with_more_failed_rows_than_it_allows_has_failed() -> None:
    counts = Counts(10, 8, 2)

    assert verdict(a_job(spec=a_spec(max_failed_rows=2)), counts, ALL_DONE) == (JobState.SUCCEEDED, ())
    ended, [error] = verdict(a_job(spec=a_spec(max_failed_rows=1)), counts, ALL_DONE)
    assert (ended, error.param) == (JobState.FAILED, "max_failed_rows")


def test_a_job_that_used_its_tokens_with_its_last_row_has_succeeded() -> None:
    job = a_job(spec=a_spec(max_tokens_total=5), usage=Usage(prompt_tokens=6))

    assert verdict(job, Counts(10, 10, 0), ALL_DONE) == (JobState.SUCCEEDED, ())
    stopped = replace(job, stop_reason=StopReason.FAILED)
    assert verdict(stopped, Counts(10, 5, 5), ALL_DONE)[1][0].param == "max_tokens_total"


def test_a_job_that_no_worker_could_run_at_all_has_failed() -> None:
    ended, [error] = verdict(a_job(), Counts(5, 0, 5), Counter({ShardState.FAILED: 2}))
    assert (ended, error.code) == (JobState.FAILED, "interrupted")


@pytest.mark.parametrize(
    ("model", "endpoint", "code"),
    [
        ("chatty", "/v1/chat/completions", None),
        ("chatty", "/v1/embeddings", "model_not_supported"),
        ("terse", "/v1/embeddings", None),
        ("unheard-of", "/v1/chat/completions", "model_not_found"),
        ("announced", "/v1/chat/completions", None),
        ("org/announced", "/v1/chat/completions", None),
    ],
)
def test_a_model_is_known_by_registration_or_by_announcement(
    model: str, endpoint: str, code: str | None
) -> None:
    catalogue = Catalogue([DECODER, ENCODER], announced=["/models/announced", "org/announced"])
    objection = catalogue.objection(model, endpoint)
    assert (objection and objection.code) == code
    assert Catalogue([]).objection(model, endpoint) is None, "where nothing is registered, nothing is unknown"


def an_object(size_bytes: int, rows: int | None) -> InputObject:
    return InputObject(uri="s3://b/k", format=InputFormat.JSONL, size_bytes=size_bytes, rows_estimated=rows)


def test_objects_not_sampled_are_taken_to_be_like_those_that_were() -> None:
    guessed = with_guesses([an_object(1000, 10), an_object(3000, 10), an_object(2000, None)])
    assert [entry.rows_estimated for entry in guessed] == [10, 10, 10]
    assert with_guesses([an_object(1000, None)]) == [an_object(1000, None)], "there is no sample"
