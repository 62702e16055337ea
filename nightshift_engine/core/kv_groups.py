"""Layers whose KV blocks come and go together, those of one window, as in vLLM's hybrid KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

PADDING_RATIO_MAX = 0.15
"""Share of the places for layers, in all groups and in those without a window, that may be empty."""


@dataclass(frozen=True, slots=True)
class KvGroups:
    """`layers[g]` are those of group g, whose tokens see `windows[g]` tokens, themselves included, or all.

    Groups without a window come first. The layers in the same place of two groups share memory.
    """

    layers: tuple[tuple[int, ...], ...]
    windows: tuple[int | None, ...]

    @classmethod
    def single(cls, layers: Mapping[int, object], window: int | None = None) -> KvGroups:
        return cls((tuple(sorted(layers)),), (window,))

    @property
    def group_of(self) -> dict[int, int]:
        return {layer: group for group, layers in enumerate(self.layers) for layer in layers}

    @property
    def place_of(self) -> dict[int, int]:
        return {layer: place for layers in self.layers for place, layer in enumerate(layers)}


def group_layers(windows: Mapping[int, int | None], shapes: Mapping[int, Hashable]) -> KvGroups:
    """Groups of equal size for layers with these windows and KV shapes.

    Layers with different windows cannot share memory if their shapes differ: then all keep every token.
    """
    by_window: dict[int | None, list[int]] = {}
    for layer in sorted(shapes):
        by_window.setdefault(windows.get(layer), []).append(layer)
    if len(by_window) <= 1:
        return KvGroups.single(shapes, *by_window)
    if len(set(shapes.values())) > 1:
        return KvGroups.single(shapes)
    size = _group_size({window: len(layers) for window, layers in by_window.items()})
    groups = [
        (window, tuple(layers[start : start + size]))
        for window, layers in sorted(by_window.items(), key=lambda item: (item[0] is not None, item[0]))
        for start in range(0, len(layers), size)
    ]
    return KvGroups(tuple(layers for _, layers in groups), tuple(window for window, _ in groups))


def _group_size(counts: Mapping[int | None, int]) -> int:
    """The size that leaves few places empty and makes the fewest groups; of several the tightest."""

    def num_groups(size: int, kinds: Mapping[int | None, int]) -> int:
        return sum(-(-count // size) for count in kinds.values())

    def is_tight(size: int) -> bool:
        unlimited: dict[int | None, int] = {None: counts.get(None, 0)}
        return all(
            num_groups(size, kinds) * size <= (1 + PADDING_RATIO_MAX) * sum(kinds.values())
            for kinds in (counts, unlimited)
        )

    tight = [size for size in range(1, max(counts.values()) + 1) if is_tight(size)]  # 1 always is
    return min(tight, key=lambda size: (num_groups(size, counts), size))


class BlockDemand:
    """The numbers of blocks that a sequence needs in each group, by its tokens."""

    def __init__(self, windows: tuple[int | None, ...], block_size: int) -> None:
        assert windows, "a model has at least one group of layers"
        self._size = block_size
        # A window of one token is treated as of two: a sequence with tokens then always holds a block.
        self._reaches = [None if window is None else max(window, 2) - 1 for window in windows]
        counts = Counter(self._reaches)
        self.num_unlimited = counts[None]
        self._num_limited = [(self._limit(reach), n) for reach, n in counts.items() if reach is not None]

    def first_needed(self, group: int, num_tokens: int) -> int:
        """Index of the first block that the tokens from the `num_tokens`-th on can see."""
        reach = self._reaches[group]
        return 0 if reach is None or num_tokens <= reach else (num_tokens - reach) // self._size

    def end_at_least(self, group: int, num_tokens: int, num_computed: int) -> int:
        """The least end of a table, in blocks, with which a sequence can go on to `num_tokens`, token by
        token.
        """
        end, reach = -(-num_tokens // self._size), self._reaches[group]
        if reach is None:
            return end
        return min(end, self.first_needed(group, num_computed) + self._limit(reach))

    def blocks_for(self, num_tokens: int, chunk: int = 1) -> int:
        """The most blocks held at once by a sequence of `num_tokens` that is computed `chunk` at a time."""
        count = -(-num_tokens // self._size)
        ahead = -(-(chunk - 1) // self._size)
        return self.num_unlimited * count + sum(n * min(count, most + ahead) for most, n in self._num_limited)

    def tokens_in(self, num_blocks: int, tokens_max: int) -> int:
        """Tokens, up to `tokens_max`, of the longest sequence that `num_blocks` hold if it is alone."""
        fits, too_many = 0, -(-tokens_max // self._size) + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.blocks_for(middle * self._size) <= num_blocks:
                fits = middle
            else:
                too_many = middle
        return min(tokens_max, fits * self._size)

    def _limit(self, reach: int) -> int:
        """Blocks that a token and the `reach` before it touch at the most, wherever they begin."""
        return -(-reach // self._size) + 1
