"""The order of claims as pure functions: what the SQL in `nightshift/store/shards/claims.py` is held to."""

from datetime import datetime

from nightshift.jobs.priorities import PriorityClass, PriorityConfig, rises_at, urgent_from


def effective_rank(
    priority: PriorityClass,
    created_at: datetime,
    deadline_at: datetime,
    now: datetime,
    config: PriorityConfig,
    work_left_s: float = 0.0,
) -> int:
    """The class's rank, one better when the job is urgent, at least 0."""
    is_urgent = rises_at(created_at, urgent_from(deadline_at, work_left_s, config), config) <= now
    return max(0, priority.rank - 1) if is_urgent else priority.rank


def claim_key(
    priority: PriorityClass, effective_rank: int, in_flight: int, fewest_lifted: int | None
) -> tuple[int, int, int]:
    """The key that orders jobs before deadline and age; the least goes first.

    `in_flight`: leased shards of its tenant. `fewest_lifted`: the smallest such number among the tenants with
    lifted jobs of its class, None if there are none. A tenant with fewer takes that tenant's turn.
    """
    if fewest_lifted is not None and in_flight < fewest_lifted:
        return (priority.rank - 1, fewest_lifted, in_flight)
    return (effective_rank, in_flight, in_flight)
