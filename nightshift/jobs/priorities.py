"""Priority classes, and the order of claims, which `store/shards/claims.py` computes in SQL:

    1  effective rank   the class, one better from `rises_at` on: its time is short, or it has waited long
    2  in flight        the tenant with the fewest shards leased right now
    3  deadline         the earlier one
    4  creation         the older one

A lifted job's turn belongs to its class: a tenant with fewer shards in flight takes it instead, so an aged
backlog delays no other tenant.

Online requests are sorted by class, the tenant's requests in flight, and age; a tenant's own by class, its
requests in flight of their model, and age, so that those of one model do not hold up those of its others.
Claiming several at once is as fair as one by one.

A claim leaves out work for which the worker has no room beside what it holds:

1. Rows. A tenant may have another shard of a model while the rows that its shards still have for that model's
   engine are fewer than one shard may have there, or those of all tenants fewer than `full_shards_max` may
   have. A small job is always one more.
2. Shards. Their number is bounded by the free places, as buffers are in a switch (dynamic thresholds:
   Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). A tenant leaves a place free for each
   that it holds, three more for each of the model that it asks for, and twice as many for a large job; a
   model leaves one for every seven that it holds. So a tenant alone has at most 13 of 64 places for small
   jobs of one model, the next tenant and the next model find one free, and as shards end the places are
   shared equally.
3. Online requests. A tenant leaves a place free for every three that it holds, and a claim takes at most a
   quarter of the free ones, so a tenant with any number of slow requests leaves places for the next.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
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
    """The times after which a job counts as one class better."""

    deadline_ramp: timedelta = timedelta(minutes=30)  # until its deadline, however little is left of it
    slack_factor: float = 1.25  # times the work that is left, until the time it is due
    ageing: timedelta = timedelta(hours=6)  # since its creation


def urgent_from(due_at: datetime, work_left_s: float, config: PriorityConfig = PriorityConfig()) -> datetime:
    """The time from which a job's slack is short. `work_left_s`: seconds that its rows take at the measured
    pace, with the present workers.
    """
    return due_at - max(config.deadline_ramp, timedelta(seconds=config.slack_factor * work_left_s))


def rises_at(
    created_at: datetime, urgent_at: datetime, config: PriorityConfig = PriorityConfig()
) -> datetime:
    """The time from which a job counts as one class better, at the latest `ageing` after its creation."""
    return min(urgent_at, created_at + config.ageing)


HELD_MAX: Final = 64
"""Bulk shards of a worker: each has two threads, one more while its input is read, and some MiB at most."""
FREE_FOR_A_PLACE_OF_THE_PAIR: Final = 3
FREE_FOR_A_LARGE_JOB: Final = 2
A_MODELS_PLACES_FOR_ONE_FREE: Final = 7
A_TENANTS_REQUESTS_FOR_ONE_FREE: Final = 3
FREE_FOR_ONE_CLAIMED: Final = 4
SMALL_JOB_ROWS: Final = 32
"""Rows of a job that need not wait for its tenant's others: all that may be held so are few for an engine."""

Pair = tuple[str, str]
"""A tenant and a model."""


@dataclass(frozen=True, slots=True)
class HeldShard:
    tenant_id: str
    model: str
    load: float
    """The rows that it still has for the engine, of those that one shard may have there: 0 to 1."""


@dataclass(frozen=True, slots=True)
class Room:
    """The work that a claim leaves out."""

    full_models: frozenset[str] = frozenset()
    """Every shard of these."""
    full_pairs: frozenset[Pair] = frozenset()
    """Every shard of these."""
    loaded_pairs: frozenset[Pair] = frozenset()
    """The jobs of these with more than `SMALL_JOB_ROWS`."""

    @property
    def is_for_all(self) -> bool:
        return self == ROOM_FOR_ALL


ROOM_FOR_ALL: Final = Room()


@dataclass(frozen=True, slots=True)
class OnlineRoom:
    at_once: int
    """Requests that one claim may take."""
    full_tenants: frozenset[str] = frozenset()
    """Tenants whose requests wait."""


def online_room_beside(held: Mapping[str, int], places: int) -> OnlineRoom:
    """Room beside so many requests of each tenant."""
    free = max(0, places - sum(held.values()))
    return OnlineRoom(
        at_once=min(free, max(1, free // FREE_FOR_ONE_CLAIMED)),
        full_tenants=frozenset(
            tenant_id for tenant_id, count in held.items() if count >= A_TENANTS_REQUESTS_FOR_ONE_FREE * free
        ),
    )


def room_beside(held: Collection[HeldShard], models: Iterable[str], full_shards_max: int) -> Room | None:
    """The room for claims of these models. None: nothing may be claimed."""
    free = HELD_MAX - len(held)
    if free <= 0:
        return None
    places = _Places(held)
    to_leave = places.to_leave([(tenant_id, model) for tenant_id in places.of_tenant for model in models])
    return Room(
        full_models=frozenset(
            model for model, count in places.of_model.items() if count >= A_MODELS_PLACES_FOR_ONE_FREE * free
        ),
        full_pairs=frozenset(pair for pair, count in to_leave.items() if count >= free),
        loaded_pairs=frozenset(
            pair
            for pair, count in to_leave.items()
            if FREE_FOR_A_LARGE_JOB * count >= free or places.are_loaded(pair, full_shards_max)
        ),
    )


class _Places:
    """Counts shards and loads."""

    def __init__(self, held: Iterable[HeldShard]) -> None:
        self.of_tenant: Counter[str] = Counter()
        self.of_model: Counter[str] = Counter()
        self._of_pair: Counter[Pair] = Counter()
        self._load_of_model: defaultdict[str, float] = defaultdict(float)
        self._load_of_pair: defaultdict[Pair, float] = defaultdict(float)
        for shard in held:
            pair = (shard.tenant_id, shard.model)
            self.of_tenant[shard.tenant_id] += 1
            self.of_model[shard.model] += 1
            self._of_pair[pair] += 1
            self._load_of_model[shard.model] += shard.load
            self._load_of_pair[pair] += shard.load

    def to_leave(self, pairs: Iterable[Pair]) -> dict[Pair, int]:
        """The places that are to be free for others, for one more."""
        return {
            pair: self.of_tenant[pair[0]] + FREE_FOR_A_PLACE_OF_THE_PAIR * self._of_pair[pair]
            for pair in pairs
        }

    def are_loaded(self, pair: Pair, full_shards_max: int) -> bool:
        """Whether its rows are as many as of one shard, and those of its model as many as they may be."""
        return self._load_of_pair[pair] >= 1.0 and self._load_of_model[pair[1]] >= full_shards_max
