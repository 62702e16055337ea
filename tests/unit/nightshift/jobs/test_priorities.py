"""Who goes first, computed without a database. `tests/integration/store` holds the SQL against it."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.jobs.priorities import (
    CLASS_OF_SERVICE_TIER,
    PriorityClass,
    PriorityConfig,
)
from tests.helpers.claim_model import claim_key, effective_rank
from tests.helpers.fakes import STARTS_AT as NOW

INTERACTIVE, STANDARD, BACKGROUND = PriorityClass
CONFIG = PriorityConfig(deadline_ramp=timedelta(minutes=30), ageing=timedelta(hours=6))
RECENT, LATE = NOW - timedelta(hours=1), NOW + timedelta(hours=12)

moments = st.timedeltas(timedelta(days=-10), timedelta(days=10)).map(lambda away: NOW + away)


@pytest.mark.parametrize(
    ("priority", "created", "deadline", "rank"),
    [
        *((priority, RECENT, LATE, rank) for rank, priority in enumerate(PriorityClass)),
        # A near deadline is worth one class.
        *(
            (BACKGROUND, RECENT, NOW + timedelta(minutes=minutes), rank)
            for minutes, rank in ((31, 2), (30, 1), (0, 1), (-5, 1))
        ),
        # A long wait is worth one class.
        *(
            (STANDARD, NOW - timedelta(hours=hours), LATE, rank)
            for hours, rank in ((5.99, 1), (6, 0), (100, 0))
        ),
        (BACKGROUND, NOW - timedelta(days=2), NOW, 1),  # both together are still worth one
    ],
)
def test_a_job_has_the_rank_of_its_class_or_a_better_one_when_it_is_old_or_urgent(
    priority: PriorityClass, created: datetime, deadline: datetime, rank: int
) -> None:
    assert effective_rank(priority, created, deadline, NOW, CONFIG) == rank


@given(st.sampled_from(PriorityClass), moments, moments)
def test_nothing_goes_before_interactive_and_no_job_loses_by_waiting(
    priority: PriorityClass, created: datetime, deadline: datetime
) -> None:
    rank = effective_rank(priority, created, deadline, NOW, CONFIG)
    later = effective_rank(priority, created, deadline, NOW + timedelta(hours=1), CONFIG)

    assert max(0, priority.rank - 1) <= later <= rank <= priority.rank


def test_where_nothing_is_lifted_the_class_decides_and_then_what_is_in_flight() -> None:
    assert claim_key(STANDARD, 1, 9, None) < claim_key(BACKGROUND, 2, 0, None)
    assert claim_key(STANDARD, 1, 0, None) < claim_key(STANDARD, 1, 1, None)


def test_the_turn_of_a_lifted_job_goes_to_the_tenant_with_less_in_flight_in_its_class() -> None:
    lifted, less = claim_key(STANDARD, 0, 5, 5), claim_key(STANDARD, 1, 0, 5)
    as_much = claim_key(STANDARD, 1, 5, 5)

    assert less < lifted < as_much
    assert claim_key(INTERACTIVE, 0, 4, None) < less, "it gets no better turn than the one it was given"
    assert less < claim_key(INTERACTIVE, 0, 6, None)


def test_every_service_tier_of_the_official_client_is_a_class() -> None:
    assert set(CLASS_OF_SERVICE_TIER) == {"auto", "default", "priority", "fast", "scale", "flex"}
    assert CLASS_OF_SERVICE_TIER["flex"] is BACKGROUND
    assert CLASS_OF_SERVICE_TIER["auto"] is INTERACTIVE
