"""The choice of the lazy model that is loaded next, and of those that make room for it. Pure: time and
memory come in as arguments.

A model is *warm* while it is loaded. Pinned models always are, and are no concern of this policy. Of the lazy
ones, work that waits for a cold one has it loaded

1. at once where it fits beside the warm ones;
2. else, in place of others, where nothing of its class or a better one waits for a warm model, or once its
   work is due: a request that a client waits for, or a job near its deadline or that has waited long
   (`nightshift/jobs/priorities.py`).

A warm model stays for `residency_s` after its load, and there is no more than one swap in that time: two
models that are asked for in turn do not load each other out at every request.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Another worker that has the model warm is given so long to take work for it.
ELSEWHERE_FIRST_S: Final = 5.0


@dataclass(frozen=True)
class ResidencyConfig:
    residency_s: float = 60.0
    """Seconds for which a model stays once it is loaded; the least time between two swaps."""
    idle_s: float = 600.0
    """A model without work for so long is unloaded. 0: it stays until another needs its memory."""


@dataclass(frozen=True)
class Resident:
    """A lazy model that is warm."""

    bytes: int
    loaded_at_s: float
    idle_since_s: float | None
    """The time from which on it has run nothing. None: it runs something."""


@dataclass(frozen=True)
class Wanted:
    """A cold model that work waits for."""

    bytes: int
    is_due: bool
    rank: int
    """The best priority class, 0 first."""
    waits_s: float
    """Seconds for which the oldest work has waited."""
    is_warm_elsewhere: bool = False


@dataclass(frozen=True)
class Load:
    model_id: str
    in_place_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unload:
    model_id: str


@dataclass(frozen=True)
class Residents:
    """Lazy models that are warm, and the memory that they leave."""

    lazy: Mapping[str, Resident]
    capacity_bytes: int
    """Bytes for all lazy models together."""
    swapped_at_s: float = float("-inf")

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - sum(model.bytes for model in self.lazy.values())


def next_change(
    residents: Residents,
    wanted: Mapping[str, Wanted],
    busy: Mapping[str, int],
    now_s: float,
    config: ResidencyConfig,
) -> Load | Unload | None:
    """`busy`: the warm models, pinned ones among them, for which work waits, and its best class."""
    for model_id, want in sorted(wanted.items(), key=_by_urgency):
        if want.is_warm_elsewhere and want.waits_s < ELSEWHERE_FIRST_S:
            continue
        if want.bytes <= residents.free_bytes:
            return Load(model_id)
        is_next = want.is_due or all(want.rank < rank for rank in busy.values())
        if now_s - residents.swapped_at_s < config.residency_s or not is_next:
            continue
        missing = want.bytes - residents.free_bytes
        if victims := _victims(residents, missing, want.is_due, now_s, config):
            return Load(model_id, victims)
    return _unused(residents, busy, now_s, config)


def _by_urgency(item: tuple[str, Wanted]) -> tuple[bool, int, float, str]:
    model_id, want = item
    return not want.is_due, want.rank, -want.waits_s, model_id


def _victims(
    residents: Residents, missing: int, is_due: bool, now_s: float, config: ResidencyConfig
) -> tuple[str, ...]:
    """Models that make room: those idle for longest first, and for work that is due those that run something,
    too. Empty: not even all of them would do.
    """
    able = [
        (model_id, resident)
        for model_id, resident in residents.lazy.items()
        if now_s - resident.loaded_at_s >= config.residency_s
        and (is_due or resident.idle_since_s is not None)
    ]
    able.sort(key=lambda item: (item[1].idle_since_s is None, item[1].idle_since_s or 0.0, item[0]))
    return _enough(able, missing)


def _enough(able: Sequence[tuple[str, Resident]], missing: int) -> tuple[str, ...]:
    chosen: list[tuple[str, Resident]] = []
    for item in able:
        chosen.append(item)
        if sum(resident.bytes for _, resident in chosen) >= missing:
            break
    else:
        return ()
    for item in list(chosen):  # a large one may have made a small one's going needless
        rest = [other for other in chosen if other is not item]
        if sum(resident.bytes for _, resident in rest) >= missing:
            chosen = rest
    return tuple(model_id for model_id, _ in chosen)


def _unused(
    residents: Residents, busy: Collection[str], now_s: float, config: ResidencyConfig
) -> Unload | None:
    if not config.idle_s:
        return None
    for model_id, resident in residents.lazy.items():
        is_unused = resident.idle_since_s is not None and now_s - resident.idle_since_s >= config.idle_s
        if is_unused and model_id not in busy and now_s - resident.loaded_at_s >= config.residency_s:
            return Unload(model_id)
    return None
