"""Who goes first, computed without a database. `tests/integration/store` holds the SQL against it."""

from collections import deque
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.jobs.priorities import (
    CLASS_OF_SERVICE_TIER,
    PriorityClass,
    PriorityConfig,
    rises_at,
    urgent_from,
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


@given(moments, moments, st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_work_never_lifts_a_job_later_and_none_waits_longer_than_ageing(
    created: datetime, due: datetime, one_s: float, other_s: float
) -> None:
    less, more = (
        rises_at(created, urgent_from(due, work_left_s, CONFIG), CONFIG)
        for work_left_s in sorted((one_s, other_s))
    )
    assert more <= less <= created + CONFIG.ageing
    assert less <= due - CONFIG.deadline_ramp


TICK = timedelta(minutes=15)


@given(
    work=st.integers(1, 40),
    spare=st.integers(0, 100),
    arrivals=st.lists(st.integers(0, 3), min_size=200, max_size=200),
)
def test_a_background_job_with_time_enough_is_done_in_time_although_better_work_never_ends(
    work: int, spare: int, arrivals: list[int]
) -> None:
    """One worker runs a tick of the first job in the order of claims. Others come with a day's time."""
    due = NOW + work * CONFIG.slack_factor * TICK + CONFIG.deadline_ramp + spare * TICK
    others: deque[datetime] = deque()
    left, now = work, NOW
    for count in arrivals:
        others.extend([now + timedelta(days=1)] * count)
        rank = effective_rank(BACKGROUND, NOW, due, now, CONFIG, left * TICK.total_seconds())
        if left and (not others or (rank, due) < (STANDARD.rank, others[0])):
            left -= 1
        elif others:
            others.popleft()
        now += TICK
        if now >= due:
            break
    assert left == 0


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
