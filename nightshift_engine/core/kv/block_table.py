"""The blocks that a sequence holds for one group of layers: a run of those its tokens fall into."""

from __future__ import annotations


class BlockTable:
    """Blocks `first` to `end` of a sequence, counted in blocks; those before `first` were given back."""

    __slots__ = ("blocks", "first")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.first = 0

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)

    def between(self, start: int, stop: int) -> tuple[int, list[int]]:
        """The blocks held of those from `start` to `stop`, and the index of the first of them."""
        start = max(start, self.first)
        return start, self.blocks[start - self.first : max(start, stop) - self.first]
