"""The domain: states, what was asked for, and names in the object store."""

import json

import pytest

from nightshift.jobs import (
    JOB_TRANSITIONS,
    SHARD_TRANSITIONS,
    Answer,
    JobSpec,
    JobState,
    ShardState,
    StopReason,
    Usage,
    Webhook,
    carry_over_key,
    carry_over_sha256,
    segment_key,
    sources,
)
from nightshift.jobs.leases import Lease, Term
from tests.helpers.fakes import STARTS_AT, a_spec

LEASE = Lease("shard_1", "job_1", "acme", Term(3), "worker_1", STARTS_AT)
SHA256 = "0123456789abcdef" * 4


def test_a_job_ends_in_one_of_four_ways_and_a_shard_in_one_of_three() -> None:
    job_ends = {state for state in JobState if state.is_terminal}
    shard_ends = {state for state in ShardState if state.is_terminal}

    assert job_ends == {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    assert shard_ends == {ShardState.DONE, ShardState.STOPPED, ShardState.FAILED}


def test_every_state_has_its_transitions_and_can_be_reached() -> None:
    assert set(JOB_TRANSITIONS) == set(JobState)
    assert set().union(*JOB_TRANSITIONS.values()) == set(JobState) - {JobState.QUEUED}
    assert set(SHARD_TRANSITIONS) == set(ShardState)
    assert set().union(*SHARD_TRANSITIONS.values()) == set(ShardState)
    for target in JobState:
        assert set(sources(target)) == {origin for origin in JobState if target in JOB_TRANSITIONS[origin]}


@pytest.mark.parametrize("reason", StopReason)
def test_a_stop_reason_leads_to_a_state_that_ends_a_job(reason: StopReason) -> None:
    assert reason.final_state.is_terminal
    assert reason.row_error_code == f"batch_{reason.final_state}"


@pytest.mark.parametrize(
    "spec",
    [
        a_spec(),
        a_spec(webhook=Webhook("https://receiver.example", ())),
        a_spec(webhook=Webhook("https://receiver.example", ("job.failed", "job.succeeded"))),
        a_spec(template={"messages": [{"content": "{{text}} ☂"}]}, id_column="id", format="parquet"),
        a_spec(max_error_rate=0.0, retry_on_interrupt=False, metadata={}, max_runtime_s=1),
    ],
)
def test_what_was_asked_for_survives_the_database(spec: JobSpec) -> None:
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_wish_of_a_newer_version_is_ignored() -> None:
    """During a rolling upgrade, old processes read jobs that new ones have written."""
    spec = a_spec()
    parts = {**spec.to_json()["parts"], "shape": "round"}

    assert JobSpec.from_json({**spec.to_json(), "colour": "blue", "parts": parts}) == spec


def test_tokens_add_up() -> None:
    assert Usage(1, 2, 3) + Usage(10, 20, 30) == Usage(11, 22, 33)


@pytest.mark.parametrize(("status_code", "succeeded"), [(200, True), (399, True), (400, False), (500, False)])
def test_an_answer_has_succeeded_below_400(status_code: int, succeeded: bool) -> None:
    assert Answer(status_code, {}, Usage()).succeeded is succeeded


def test_two_leases_of_a_shard_never_write_under_one_name() -> None:
    later = Lease("shard_1", "job_1", "acme", Term(4), "worker_2", STARTS_AT)

    assert segment_key(LEASE, 7, 12) == "segments/acme/job_1/000007/t3-000012.arrow"
    names = {segment_key(lease, 7, seq) for lease in (LEASE, later) for seq in range(3)}
    names |= {carry_over_key(lease, 7, seq, SHA256) for lease in (LEASE, later) for seq in range(3)}
    assert len(names) == 12


def test_the_key_of_a_carry_over_says_what_was_written_there() -> None:
    key = carry_over_key(LEASE, 7, 12, SHA256)

    assert key == f"segments/acme/job_1/000007/t3-c000012-{SHA256}.jsonl"
    assert carry_over_sha256(key) == SHA256
    of_an_earlier_release = "segments/acme/job_1/000007/t3-c000012.jsonl"
    assert carry_over_sha256(of_an_earlier_release) is None
    assert carry_over_sha256(segment_key(LEASE, 7, 12)) is None


def test_segments_of_a_lease_sort_in_the_order_they_were_written() -> None:
    names = [segment_key(LEASE, 7, seq) for seq in (9, 10, 99, 100)]

    assert names == sorted(names)
