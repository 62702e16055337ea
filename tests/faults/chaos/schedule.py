"""Which fault happens next, drawn from a seed: the same seed gives the same faults in the same order.

Pure: it knows names of roles and of faults, and nothing of how they are done. Faults are dealt like cards, so
that none waits for its turn for long and no worker dies twice before the others have had theirs.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, TypeVar

from nightshift.process import failpoints

T = TypeVar("T")


class Kind(StrEnum):
    """Kinds of faults. The first group kills a process; the second gets in the way of all of them."""

    KILL_WORKER = "kill -9 a worker"
    KILL_MACHINE = "kill -9 a worker and its supervisor"
    KILL_SCHEDULER = "kill -9 a scheduler"
    KILL_API = "kill -9 the API"
    FAILPOINT = "kill -9 at a failpoint"
    KILL_UPSTREAM = "kill -9 an upstream, and start it"

    DRAIN_WORKER = "SIGTERM to a worker"
    PAUSE_WORKER = "SIGSTOP to a worker for longer than its lease"
    PAUSE_SCHEDULER = "SIGSTOP to a scheduler for longer than it may lead"
    FLUSH_REDIS = "FLUSHALL"
    KILL_REDIS = "kill -9 Redis, and start it"
    RESTART_DATABASE = "restart PostgreSQL at once"
    CUT = "reset every connection through a proxy"
    DELAY = "delay what goes through a proxy"
    SILENCE = "let nothing through a proxy"

    @property
    def is_kill(self) -> bool:
        return self in KILLS


KILLS: Final = {
    Kind.KILL_WORKER: 12,
    Kind.KILL_MACHINE: 1,
    Kind.KILL_SCHEDULER: 1,
    Kind.KILL_API: 1,
    Kind.FAILPOINT: 5,
    Kind.KILL_UPSTREAM: 12,
}  # how many of each there are in a deck of them
INTERFERENCES: Final = tuple(kind for kind in Kind if kind not in KILLS)
AT_A_PROXY: Final = frozenset({Kind.CUT, Kind.DELAY, Kind.SILENCE})
AT_A_WORKER: Final = frozenset({Kind.KILL_WORKER, Kind.DRAIN_WORKER, Kind.PAUSE_WORKER})
AT_A_SCHEDULER: Final = frozenset({Kind.KILL_SCHEDULER, Kind.PAUSE_SCHEDULER})
WAIT_S: Final = (0.0, 0.6)  # between one fault and the next


@dataclass(frozen=True)
class Scene:
    """Parts of the service that can be broken."""

    workers: int = 3
    schedulers: int = 2
    proxies: frozenset[str] = frozenset()
    has_postgresql: bool = False
    upstreams: int = 0

    @property
    def kills(self) -> Sequence[Kind]:
        """A deck of them."""
        missing = set() if self.upstreams else {Kind.KILL_UPSTREAM}
        return [kind for kind, count in KILLS.items() if kind not in missing for _ in range(count)]

    @property
    def interferences(self) -> Sequence[Kind]:
        missing = set() if self.proxies else set(AT_A_PROXY)
        missing |= set() if self.has_postgresql else {Kind.RESTART_DATABASE}
        return [kind for kind in INTERFERENCES if kind not in missing]


@dataclass(frozen=True)
class Action:
    """One fault: what, to whom or where, and how long after the one before."""

    kind: Kind
    target: str
    wait_s: float

    def __str__(self) -> str:
        return f"after {self.wait_s:.2f} s {self.kind}{f': {self.target}' if self.target else ''}"


def schedule(
    seed: int, round_no: int, kills: int, scene: Scene, *, interferences: int | None = None
) -> Sequence[Action]:
    """The faults of one round. Without `interferences`, there is one of them for four kills."""
    draw = random.Random(f"{seed}/{round_no}")
    if interferences is None:
        interferences = -(-kills // 4)
    kinds = [
        *islice(_dealt(draw, scene.kills), kills),
        *islice(_dealt(draw, scene.interferences), interferences),
    ]
    draw.shuffle(kinds)
    targets = _targets(draw, scene)
    return [Action(kind, next(targets[kind]), draw.uniform(*WAIT_S)) for kind in kinds]


def _dealt(draw: random.Random, cards: Sequence[T]) -> Iterator[T]:
    """Card after card from a shuffled deck, and then from another."""
    while True:
        yield from draw.sample(cards, len(cards))


def _targets(draw: random.Random, scene: Scene) -> dict[Kind, Iterator[str]]:
    workers = _dealt(draw, [f"worker-{number + 1}" for number in range(scene.workers)])
    schedulers = _dealt(draw, [f"scheduler-{number + 1}" for number in range(scene.schedulers)])
    targets = {kind: _dealt(draw, [""]) for kind in Kind}
    targets |= dict.fromkeys(AT_A_WORKER, workers)
    targets |= dict.fromkeys(AT_A_SCHEDULER, schedulers)
    targets |= {kind: _dealt(draw, sorted(scene.proxies)) for kind in AT_A_PROXY if scene.proxies}
    targets[Kind.KILL_MACHINE] = _dealt(draw, [f"machine-{number + 1}" for number in range(scene.workers)])
    if scene.upstreams:
        names = [f"upstream-{number + 1}" for number in range(scene.upstreams)]
        targets[Kind.KILL_UPSTREAM] = _dealt(draw, names)
    targets[Kind.KILL_API] = _dealt(draw, ["api"])
    targets[Kind.FAILPOINT] = _dealt(draw, failpoints.NAMES)
    return targets
