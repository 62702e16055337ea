"""Other clocks are compared with this machine's, and judged by what is certain of the difference."""

from datetime import UTC, datetime, timedelta

import pytest

from nightshift.cli.doctor.clocks import compare
from nightshift.cli.doctor.examination import Finding, Status

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def compared(ahead_s: float, took_s: float = 0.0, resolution_s: float = 0.0) -> Finding:
    """The finding if the other clock was read in the middle of a request that took so long."""
    looks = iter((NOON, NOON + timedelta(seconds=took_s)))
    answer = NOON + timedelta(seconds=took_s / 2 + ahead_s)
    return compare("its clock", lambda: answer, timedelta(seconds=resolution_s), lambda: next(looks))


@pytest.mark.parametrize(
    ("ahead_s", "status"),
    [
        (0, Status.OK),
        (1.9, Status.OK),
        (-1.9, Status.OK),
        (2.1, Status.WARNING),
        (-2.1, Status.WARNING),
        (299, Status.WARNING),
        (301, Status.ERROR),
        (-3600, Status.ERROR),
    ],
)
def test_a_clock_is_judged_by_its_distance(ahead_s, status):
    finding = compared(ahead_s)
    assert (finding.status, finding.figures["ahead_s"]) == (status, ahead_s)


def test_a_slow_answer_is_not_taken_for_a_wrong_clock():
    late = compared(ahead_s=2.5, took_s=4)
    assert (late.status, late.figures["within_s"]) == (Status.OK, 2)
    assert compared(ahead_s=4.5, took_s=4).status is Status.WARNING


def test_whole_seconds_are_no_difference():
    """Two clocks are both right when, at 12:00:00.9, one of whole seconds says 12:00:00."""
    assert compared(ahead_s=-0.9, resolution_s=1).figures == {"ahead_s": -0.4, "within_s": 0.5}
    assert compared(ahead_s=-2.9, resolution_s=1).status is Status.OK


def test_the_side_is_named():
    assert "3.00 s ahead of this machine's" in compared(3).detail
    assert "3.00 s behind this machine's" in compared(-3).detail
