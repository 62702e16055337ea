"""Who goes first, computed without a database. `tests/integration/store` holds the SQL against it."""

from datetime import timedelta

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


def test_a_class_has_its_rank() -> None:
    assert [priority.rank for priority in PriorityClass] == [0, 1, 2]


@pytest.mark.parametrize("priority", PriorityClass)
def test_a_job_that_is_neither_old_nor_urgent_has_the_rank_of_its_class(priority: PriorityClass) -> None:
    assert effective_rank(priority, RECENT, LATE, NOW, CONFIG) == priority.rank


@pytest.mark.parametrize(("minutes_left", "rank"), [(31, 2), (30, 1), (0, 1), (-5, 1)])
def test_a_near_deadline_is_worth_one_class(minutes_left: int, rank: int) -> None:
    deadline = NOW + timedelta(minutes=minutes_left)

    assert effective_rank(BACKGROUND, RECENT, deadline, NOW, CONFIG) == rank


@pytest.mark.parametrize(("hours_waited", "rank"), [(5.99, 1), (6, 0), (100, 0)])
def test_a_long_wait_is_worth_one_class(hours_waited: float, rank: int) -> None:
    created = NOW - timedelta(hours=hours_waited)

    assert effective_rank(STANDARD, created, LATE, NOW, CONFIG) == rank


def test_old_and_urgent_together_are_still_one_class() -> None:
    assert effective_rank(BACKGROUND, NOW - timedelta(days=2), NOW, NOW, CONFIG) == 1


@given(st.sampled_from(PriorityClass), moments, moments)
def test_nothing_goes_before_interactive_and_no_job_loses_by_waiting(
    priority: PriorityClass, created: object, deadline: object
) -> None:
    rank = effective_rank(priority, created, deadline, NOW, CONFIG)  # type: ignore[arg-type]
    later = effective_rank(priority, created, deadline, NOW + timedelta(hours=1), CONFIG)  # type: ignore[arg-type]

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
