"""Why workers die, and what may be held against the rows that were running."""

import pytest

from nightshift.fleet.workers import ExitCause


@pytest.mark.parametrize("cause", ExitCause)
def test_a_cause_fits_where_it_is_written_down(cause: ExitCause) -> None:
    assert len(cause) <= 24


def test_what_no_running_row_can_have_caused_is_no_crash() -> None:
    assert [cause for cause in ExitCause if not cause.is_crash] == [
        ExitCause.DRAINED,
        ExitCause.DRAIN_TOO_SLOW,
        ExitCause.QUEUE_CONNECTION_LOST,
        ExitCause.STUCK_LOAD,
        ExitCause.DATABASE_UNAVAILABLE,
    ]


def test_a_crash_is_explained_where_the_process_itself_failed() -> None:
    crashes = [cause for cause in ExitCause if cause.is_crash]
    assert [cause for cause in crashes if not cause.is_explained] == [
        ExitCause.UNREQUESTED_DRAIN,
        ExitCause.KILLED,
        ExitCause.LEASE_EXPIRED,
    ]
    assert not any(cause.is_explained for cause in ExitCause if not cause.is_crash)
