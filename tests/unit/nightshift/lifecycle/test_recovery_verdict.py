"""What becomes of a shard whose worker is gone, decided without a database."""

from dataclasses import replace

import pytest

from nightshift.jobs import JobKind, StopReason
from nightshift.jobs.dead_letters import Judgement
from nightshift.jobs.leases import FIRST_TERM
from nightshift.lifecycle.recovery import Verdict, verdict
from nightshift.store.shards.leases import ExpiredLease
from nightshift.testing import STARTS_AT

ATTEMPTS_MAX = 20
ABANDONED = ExpiredLease(
    shard_id="shard_1",
    job_id="job_1",
    tenant_id="default",
    kind=JobKind.BULK,
    term=FIRST_TERM,
    worker_id="worker_1",
    expired_at=STARTS_AT,
    attempts=1,
    attempts_in_a_row=1,
    crash_count=0,
    stop_reason=None,
    retry_on_interrupt=True,
)


CHARGED = Judgement(charge=True)


@pytest.mark.parametrize(
    ("what", "judged", "decided"),
    [
        ({}, CHARGED, Verdict.RETRY),
        ({"attempts_in_a_row": ATTEMPTS_MAX - 1}, CHARGED, Verdict.RETRY),
        ({"attempts_in_a_row": ATTEMPTS_MAX}, CHARGED, Verdict.GIVE_UP),
        ({"attempts": ATTEMPTS_MAX}, CHARGED, Verdict.RETRY),
        ({"attempts_in_a_row": ATTEMPTS_MAX}, Judgement(charge=False), Verdict.RETRY),
        ({}, Judgement(charge=True, give_up=True), Verdict.GIVE_UP),
        ({}, Judgement(charge=True, dead=(3,)), Verdict.RETRY),
        ({"kind": JobKind.ONLINE}, Judgement(charge=True, dead=(0,)), Verdict.GIVE_UP),
        ({"retry_on_interrupt": False}, CHARGED, Verdict.GIVE_UP),
        ({"stop_reason": StopReason.CANCELLED}, Judgement(charge=True, give_up=True), Verdict.STOP),
    ],
)
def test_a_shard_is_tried_again_until_it_is_plainly_the_shard(
    what: dict, judged: Judgement, decided: Verdict
) -> None:
    assert verdict(replace(ABANDONED, **what), ATTEMPTS_MAX, judged) is decided
