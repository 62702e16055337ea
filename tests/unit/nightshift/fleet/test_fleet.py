"""Why workers die, and what may be held against the rows that were running."""

import pytest

from nightshift.fleet.workers import DeathCause


@pytest.mark.parametrize("cause", DeathCause)
def test_a_cause_fits_where_it_is_written_down(cause: DeathCause) -> None:
    assert len(cause) <= 24


def test_a_worker_that_was_asked_to_go_grew_deaf_or_could_not_be_heard_is_no_crash() -> None:
    assert [cause for cause in DeathCause if not cause.is_crash] == [
        DeathCause.DRAINED,
        DeathCause.DRAIN_TOO_SLOW,
        DeathCause.DEAF,
        DeathCause.UNHEARD,
    ]


def test_a_crash_is_explained_where_the_process_itself_failed() -> None:
    crashes = [cause for cause in DeathCause if cause.is_crash]
    assert [cause for cause in crashes if not cause.is_explained] == [
        DeathCause.LEFT_UNASKED,
        DeathCause.KILLED,
        DeathCause.LEASE_EXPIRED,
    ]
    assert not any(cause.is_explained for cause in DeathCause if not cause.is_crash)
