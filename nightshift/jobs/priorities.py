"""Priority classes, and the order of claims, which `store/shards/claims.py` computes in SQL:

    1  effective rank   the class, one better when the deadline is near or the job has waited long
    2  in flight        the tenant with the fewest shards leased right now
    3  deadline         the earlier one
    4  creation         the older one

A lifted job's turn belongs to its class: a tenant with fewer shards in flight takes it instead, so an aged
backlog delays no other tenant.

Online requests are sorted by class, the tenant's requests in flight, and age; a tenant's own by class, its
requests in flight of their model, and age, so that those of one model do not hold up those of its others.
Claiming several at once is as fair as one by one.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final


class PriorityClass(StrEnum):
    INTERACTIVE = "interactive"  # a person is waiting
    STANDARD = "standard"  # within the completion window
    BACKGROUND = "background"  # when there is capacity

    @property
    def rank(self) -> int:
        return _RANKS[self]

    def at_most(self, ceiling: "PriorityClass") -> "PriorityClass":
        """This class, or the ceiling where this one is better."""
        return self if self.rank >= ceiling.rank else ceiling


_RANKS: Final = {PriorityClass.INTERACTIVE: 0, PriorityClass.STANDARD: 1, PriorityClass.BACKGROUND: 2}

# The class of an OpenAI request's `service_tier`.
CLASS_OF_SERVICE_TIER: Final = {
    "auto": PriorityClass.INTERACTIVE,
    "default": PriorityClass.STANDARD,
    "priority": PriorityClass.INTERACTIVE,
    "fast": PriorityClass.INTERACTIVE,
    "scale": PriorityClass.STANDARD,
    "flex": PriorityClass.BACKGROUND,
}


# And the tier that an answer names: the one it was run in, which need not be the one asked for.
SERVICE_TIER_OF_CLASS: Final = {
    PriorityClass.INTERACTIVE: "priority",
    PriorityClass.STANDARD: "default",
    PriorityClass.BACKGROUND: "flex",
}


@dataclass(frozen=True)
class PriorityConfig:
    """When a job counts as one class better."""

    deadline_ramp: timedelta = timedelta(minutes=30)  # until its deadline
    ageing: timedelta = timedelta(hours=6)  # since its creation
