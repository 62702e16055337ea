"""The fate of a shard whose worker is gone, decided without a database."""

from dataclasses import replace

import pytest

from nightshift.jobs import JobKind, StopReason
from nightshift.jobs.dead_letters import Charge
from nightshift.jobs.leases import FIRST_TERM
from nightshift.lifecycle.recovery import CHARGE_SHARD, Verdict, verdict
from nightshift.store.shards.leases import ExpiredLease
from tests.helpers.fakes import STARTS_AT

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


@pytest.mark.parametrize(
    ("what", "charge", "decided"),
    [
        ({}, CHARGE_SHARD, Verdict.RETRY),
        ({"attempts_in_a_row": ATTEMPTS_MAX - 1}, CHARGE_SHARD, Verdict.RETRY),
        ({"attempts_in_a_row": ATTEMPTS_MAX}, CHARGE_SHARD, Verdict.GIVE_UP),
        ({"attempts": ATTEMPTS_MAX}, CHARGE_SHARD, Verdict.RETRY),
        ({"attempts_in_a_row": ATTEMPTS_MAX}, Charge(shard=False), Verdict.RETRY),
        ({}, Charge(shard=False, dead_row=3), Verdict.RETRY),
        ({"kind": JobKind.ONLINE}, Charge(shard=False, dead_row=0), Verdict.GIVE_UP),
        ({"retry_on_interrupt": False}, CHARGE_SHARD, Verdict.GIVE_UP),
        (
            {"stop_reason": StopReason.CANCELLED, "attempts_in_a_row": ATTEMPTS_MAX},
            CHARGE_SHARD,
            Verdict.STOP,
        ),
    ],
)
def test_a_shard_is_tried_again_until_it_is_plainly_the_shard(
    what: dict, charge: Charge, decided: Verdict
) -> None:
    assert verdict(replace(ABANDONED, **what), ATTEMPTS_MAX, charge) is decided
