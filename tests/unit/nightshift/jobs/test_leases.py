"""Trust: how long a worker may believe in its leases, on its own clock."""

import pytest

from nightshift.jobs.leases import LeaseConfig, Trust, fault_delay_s

CONFIG = LeaseConfig(ttl_s=30, heartbeat_s=5, trust_s=20)


def renewed(*asked_at_s: float) -> Trust:
    trust = Trust(CONFIG)
    for at_s in asked_at_s:
        trust.renewed(at_s)
    return trust


@pytest.mark.parametrize("asked_at_s", [(100,), (100, 90)], ids=["renewed", "an answer was overtaken"])
def test_trust_lasts_from_the_moment_the_renewal_was_asked_for_and_ends_before_the_lease(
    asked_at_s: tuple[float, ...],
) -> None:
    trust = renewed(*asked_at_s)

    assert [(now, trust.holds(now), trust.is_lost(now)) for now in (119, 120, 129, 130)] == [
        (119, True, False),
        (120, False, False),  # write nothing more, and hope for a renewal
        (129, False, False),
        (130, False, True),
    ]


def test_what_was_never_renewed_is_not_trusted() -> None:
    assert not renewed().holds(0)
    assert renewed().is_lost(0)


def test_the_defaults_leave_room_for_several_renewals() -> None:
    config = LeaseConfig()

    assert config.ttl_s / config.heartbeat_s >= 3
    assert config.ttl_s - config.trust_s >= config.heartbeat_s


@pytest.mark.parametrize(
    ("ttl_s", "heartbeat_s", "trust_s"), [(30, 5, 30), (30, 20, 20), (30, 0, 20), (30, -1, 20), (10, 5, 20)]
)
def test_a_lease_that_cannot_be_kept_is_refused(ttl_s: float, heartbeat_s: float, trust_s: float) -> None:
    with pytest.raises(ValueError, match="heartbeat_s < trust_s < ttl_s"):
        LeaseConfig(ttl_s=ttl_s, heartbeat_s=heartbeat_s, trust_s=trust_s)


def test_delays_double_up_to_a_minute_and_never_strike_in_step() -> None:
    delays = [fault_delay_s(faults, "shard_1") for faults in range(1, 20)]

    for delay, middle in zip(delays, [1, 2, 4, 8, 16, 32] + [60] * 13, strict=True):
        assert 0.8 * middle <= delay <= 1.2 * middle
    assert delays == [fault_delay_s(faults, "shard_1") for faults in range(1, 20)]
    assert fault_delay_s(6, "shard_1") != fault_delay_s(6, "shard_2")
