"""When a job has passed one of its limits. Pure."""

import pytest

from nightshift.jobs import Counts, Usage
from nightshift.jobs.limits import failed_rows_passed, limit_passed, why_stopped
from tests.helpers.fakes import a_job, a_spec

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
    passed = limit_passed(job, ROWS_MIN)
    assert (passed.code if passed else None) == ("max_error_rate_exceeded" if aborts else None)


def test_of_a_job_of_unknown_size_nothing_is_said_about_the_whole() -> None:
    assert failed_rows_passed(a_spec(max_error_rate=0.05), Counts(None, 0, 1000)) is None


@pytest.mark.parametrize(("failed", "code"), [(3, None), (4, "max_failed_rows_exceeded")])
def test_failed_rows_have_a_limit_of_their_own(failed: int, code: str | None) -> None:
    job = a_job(spec=a_spec(max_failed_rows=3), counts=Counts(None, 10, failed))
    passed = limit_passed(job, ROWS_MIN)
    assert (passed.code if passed else None) == code


@pytest.mark.parametrize(("tokens", "code"), [(100, None), (101, "max_tokens_total_exceeded")])
def test_prompts_and_completions_have_a_limit_together(tokens: int, code: str | None) -> None:
    usage = Usage(prompt_tokens=60, completion_tokens=tokens - 60, cached_tokens=50)
    job = a_job(spec=a_spec(max_tokens_total=100), usage=usage)
    passed = limit_passed(job, ROWS_MIN)
    assert (passed.code if passed else None) == code


def test_a_stopped_job_says_which_limit_it_passed_although_its_other_rows_now_count_as_failed() -> None:
    limits = a_spec(max_tokens_total=100, max_failed_rows=5, max_error_rate=0.1)
    counts = Counts(1000, 10, 990)

    assert why_stopped(a_job(spec=limits, usage=Usage(101)), counts).param == "max_tokens_total"
    assert why_stopped(a_job(spec=limits, usage=Usage(100)), counts).param == "max_failed_rows"
    assert why_stopped(a_job(spec=a_spec(max_error_rate=0.1)), counts).param == "max_error_rate"
