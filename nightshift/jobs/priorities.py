"""Who goes first: three classes, bent by deadlines and by age, and fairness between tenants.

The claim's SQL (`store/claims.py`) sorts by exactly these values; they are written here, where they can be
read and tested without a database.

    1  effective rank   the class, one better when the deadline is near or the job has waited long
    2  in flight        the tenant with the fewest shards leased right now
    3  deadline         the earlier one
    4  creation         the older one

A job that is lifted so wins its turns for its class, not for its tenant: where a tenant with fewer shards in
flight waits in the same class, that one is served in its place. So no tenant waits because another's
backlog has grown old, and what has grown old still gets its tenant's fair share of those turns.

Online requests are sorted by class as it was asked for (their deadlines are minutes), the tenant's requests
in flight, and age. Claimed several at once, they are as fair as if they had been claimed one by one.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class PriorityClass(StrEnum):
    """How urgent a job is."""

    INTERACTIVE = "interactive"  # a person is looking at the screen
    STANDARD = "standard"  # within the completion window, sooner is better
    BACKGROUND = "background"  # whenever there is room

    @property
    def rank(self) -> int:
        """0 is served first."""
        return _RANKS[self]


_RANKS: Final = {PriorityClass.INTERACTIVE: 0, PriorityClass.STANDARD: 1, PriorityClass.BACKGROUND: 2}

# The `service_tier` of an OpenAI request is the client's standard way to choose a class.
CLASS_OF_SERVICE_TIER: Final = {
    "auto": PriorityClass.INTERACTIVE,
    "default": PriorityClass.STANDARD,
    "priority": PriorityClass.INTERACTIVE,
    "fast": PriorityClass.INTERACTIVE,
    "scale": PriorityClass.STANDARD,
    "flex": PriorityClass.BACKGROUND,
}


@dataclass(frozen=True)
class PriorityConfig:
    """When a job counts as one class better than it asked for."""

    deadline_ramp: timedelta = timedelta(minutes=30)  # this close to its deadline
    ageing: timedelta = timedelta(hours=6)  # or this long since it was created


def effective_rank(
    priority: PriorityClass,
    created_at: datetime,
    deadline_at: datetime,
    now: datetime,
    config: PriorityConfig,
) -> int:
    """The rank a job is claimed by: its class's, one better when it is urgent, never better than 0."""
    urgent = deadline_at <= now + config.deadline_ramp or created_at <= now - config.ageing
    return max(0, priority.rank - 1) if urgent else priority.rank


def claim_key(
    priority: PriorityClass, effective_rank: int, in_flight: int, fewest_lifted: int | None
) -> tuple[int, int, int]:
    """What a job is claimed by before its deadline and its age; the least goes first.

    `in_flight`: leased shards of its tenant. `fewest_lifted`: the least such number among the tenants of
    lifted jobs of its class; None: none is lifted. A tenant with fewer is served in its place.
    """
    if fewest_lifted is not None and in_flight < fewest_lifted:
        return (priority.rank - 1, fewest_lifted, in_flight)
    return (effective_rank, in_flight, in_flight)
