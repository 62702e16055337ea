"""When a job has failed too often. Pure."""

import pytest

from nightshift.jobs import Counts
from nightshift.testing import a_job, a_spec
from scheduler.duties.deadlines import exceeds_error_rate, must_abort

ROWS_MIN = 100


@pytest.mark.parametrize(
    ("rate", "counts", "aborts"),
    [
        (None, Counts(1000, 0, 1000), False),  # without a limit
        (0.05, Counts(None, 95, 5), False),  # exactly at the limit
        (0.05, Counts(None, 94, 6), True),
        (0.05, Counts(None, 0, 99), False),  # too few rows to tell, and the job may be endless
        (0.05, Counts(1000, 0, 51), True),  # few, but whatever follows, more than 50 of 1000 have failed
        (0.05, Counts(1000, 0, 50), False),
        (0.0, Counts(10, 0, 1), True),  # no row may fail
        (1.0, Counts(10, 0, 10), False),  # all rows may
    ],
)
def test_a_job_is_aborted_once_its_error_rate_is_exceeded(
    rate: float | None, counts: Counts, aborts: bool
) -> None:
    job = a_job(spec=a_spec(max_error_rate=rate), counts=counts)
    assert must_abort(job, ROWS_MIN) is aborts


def test_of_a_job_of_unknown_size_nothing_is_said_about_the_whole() -> None:
    assert not exceeds_error_rate(Counts(None, 0, 1000), 0.05)
