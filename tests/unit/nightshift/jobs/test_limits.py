"""When a job has passed one of its limits. Pure."""

import pytest

from nightshift.jobs import Counts, Usage
from nightshift.jobs.limits import failed_rows_passed, limit_passed, why_stopped
from tests.helpers.fakes import a_job, a_spec

ROWS_MIN = 100


def passed(counts: Counts = Counts(), usage: Usage = Usage(), **limits: float | None) -> str | None:
    """The code of the limit that a job has passed."""
    limit = limit_passed(a_job(spec=a_spec(**limits), counts=counts, usage=usage), ROWS_MIN)
    return limit.code if limit else None


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
    assert passed(counts, max_error_rate=rate) == ("max_error_rate_exceeded" if aborts else None)


def test_of_a_job_of_unknown_size_nothing_is_said_about_the_whole() -> None:
    assert failed_rows_passed(a_spec(max_error_rate=0.05), Counts(None, 0, 1000)) is None


def test_failed_rows_and_tokens_have_limits_of_their_own() -> None:
    """Prompts and completions have theirs together."""
    rows = [passed(Counts(None, 10, failed), max_failed_rows=3) for failed in (3, 4)]
    tokens = [
        passed(usage=Usage(prompt_tokens=60, completion_tokens=said, cached_tokens=50), max_tokens_total=100)
        for said in (40, 41)
    ]

    assert rows == [None, "max_failed_rows_exceeded"]
    assert tokens == [None, "max_tokens_total_exceeded"]


def test_a_stopped_job_says_which_limit_it_passed_although_its_other_rows_now_count_as_failed() -> None:
    limits = a_spec(max_tokens_total=100, max_failed_rows=5, max_error_rate=0.1)
    counts = Counts(1000, 10, 990)

    assert why_stopped(a_job(spec=limits, usage=Usage(101)), counts).param == "max_tokens_total"
    assert why_stopped(a_job(spec=limits, usage=Usage(100)), counts).param == "max_failed_rows"
    assert why_stopped(a_job(spec=a_spec(max_error_rate=0.1)), counts).param == "max_error_rate"
