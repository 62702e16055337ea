"""Adapters on a device: a slot for each, of fixed memory in every layer that some adapter changes."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from .targets import Place, Target

BLOCK_OUTPUTS = 16
"""Outputs that lie together in a slot: numbers of one register."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's update of a layer's weight: `b @ a` is added."""

    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]; its scaling is in it

    @property
    def rank(self) -> int:
        return len(self.a)


class PlaceMemory:
    """The slots of one packed layer."""

    def __init__(
        self, targets: Iterable[Target], slots: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`targets` are the layers of the checkpoint that it is made of."""
        self.targets = sorted(targets, key=lambda target: target.part)
        self.rank = rank
        """The most that a part has in a slot."""
        inputs = self.targets[0].in_features
        self.part_ends = [target.first + target.out_features for target in self.targets]
        """The output behind each part."""
        blocks = accumulate(-(-target.out_features // BLOCK_OUTPUTS) for target in self.targets)
        self._block_ends = list(blocks)
        self.ends = torch.tensor([*zip(self._block_ends, self.part_ends, strict=True)])
        """int64 `[parts, 2]`: the block behind each part, and the output. On the host."""
        self.a = torch.zeros(slots, len(self.targets) * rank, inputs, dtype=dtype, device=device)
        self.b = torch.zeros(slots, self._block_ends[-1], rank, BLOCK_OUTPUTS, dtype=dtype, device=device)
        """Outputs by blocks, so that kernels read memory in its order. A block is of one part, whose rows of
        `a` it reads."""
        self.ranks = torch.zeros(slots, dtype=torch.int32, device=device)
        """int32 `[slots]`: 0 where the slot's adapter leaves the layer as it is."""
        self._changed_by: set[int] = set()

    @property
    def is_changed(self) -> bool:
        """Whether an adapter in some slot changes the layer."""
        return bool(self._changed_by)

    def put(self, slot: int, by_part: Mapping[int, LowRank]) -> None:
        """Writes an adapter's share over what the slot had."""
        self._changed_by.discard(slot)
        self.ranks[slot] = max((low_rank.rank for low_rank in by_part.values()), default=0)
        if not by_part:
            return
        self._changed_by.add(slot)
        a, b = self.a[slot].zero_().view(len(self.targets), self.rank, -1), self.b[slot].zero_()
        for part, low_rank in by_part.items():
            target, rank = self.targets[part], low_rank.rank
            outputs = low_rank.b if target.order is None else low_rank.b[target.order]
            outputs = F.pad(outputs, (0, 0, 0, -len(outputs) % BLOCK_OUTPUTS))
            a[part, :rank] = low_rank.a.to(a)
            end, blocks = self._block_ends[part], outputs.view(-1, BLOCK_OUTPUTS, rank).transpose(1, 2)
            b[end - len(blocks) : end, :rank] = blocks.to(b)


class AdapterMemory:
    """The slots of a decoder."""

    def __init__(
        self,
        targets: Mapping[str, Target],
        changed: Iterable[str],
        *,
        slots: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`targets` are all of the decoder, by path, `changed` the paths of those that some adapter changes;
        memory for the others is not taken. `rank` is the largest of any adapter.
        """
        self.targets = targets
        by_place: dict[tuple[int, Place], list[Target]] = {}
        for target in targets.values():
            by_place.setdefault((target.layer, target.place), []).append(target)
        self._places = {
            place: PlaceMemory(by_place[place], slots, rank, dtype, device)
            for place in dict.fromkeys((targets[path].layer, targets[path].place) for path in changed)
        }
        self.num_puts = 0
        """The number of times that a slot was written: since then, other layers may be changed."""
        self._is_warming_up = False

    def at(self, layer: int, place: Place) -> PlaceMemory | None:
        """The slots of a packed layer. None: no adapter in a slot changes it."""
        memory = self._places.get((layer, place))
        return memory if memory is not None and (memory.is_changed or self._is_warming_up) else None

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Has every layer that some adapter changes computed as with one."""
        self._is_warming_up = True
        try:
            yield
        finally:
            self._is_warming_up = False

    @torch.inference_mode()
    def put(self, slot: int, adapter: Mapping[str, LowRank]) -> None:
        """Writes an adapter, by the paths of the layers that it changes, over what the slot had."""
        self.num_puts += 1
        by_place: dict[tuple[int, Place], dict[int, LowRank]] = {place: {} for place in self._places}
        for path, low_rank in adapter.items():
            target = self.targets[path]
            by_place[target.layer, target.place][target.part] = low_rank
        for place, by_part in by_place.items():
            self._places[place].put(slot, by_part)
