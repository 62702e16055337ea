"""Memory for activations that is kept from step to step, and steps written down over it."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..device.native_calls import WrittenCalls

CACHE_WAY_BYTES = 4096
"""Distance of which multiples put rows into one set of the first cache, which has fewer ways than a kernel
has rows."""
GAP_BYTES = 64


class Buffers:
    """Memory for activations, kept from step to step and grown when a step is larger than all before."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self.num_moves = 0
        """The number of times that one has grown, and so moved."""

    def get(
        self, name: str, rows: int, columns: int, dtype: torch.dtype, *, is_spaced: bool = False
    ) -> Tensor:
        """`[rows, columns]`, apart for each width; with `is_spaced`, rows may lie apart too."""
        key = name, columns, dtype
        kept = self._kept.get(key)
        if kept is None or len(kept) < rows:
            crowds = columns * dtype.itemsize % CACHE_WAY_BYTES == 0
            gap = GAP_BYTES // dtype.itemsize if is_spaced and crowds else 0
            self._kept[key] = kept = torch.empty(rows, columns + gap, dtype=dtype)[:, :columns]
            self.num_moves += 1
        return kept[:rows]


WRITTEN_STEPS_MAX = 256
"""Steps of so many sizes are kept written down."""


class WrittenSteps:
    """Steps written down over memory of `buffers`, and dropped where that moves."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._written: dict[Hashable, WrittenCalls] = {}
        self._written_for: tuple[object, ...] = ()

    def repeat(self, size: Hashable, valid_for: Hashable, compute: Callable[[], None]) -> None:
        """Does what `compute` does, all of it calls of native kernels: a step of this size.

        What was written down for something else than `valid_for` is dropped. Raises MemoryError.
        """
        if (written := self._still_written(valid_for).get(size)) is None:
            written = WrittenCalls()
            with written.writing():
                compute()
            # Writing may have grown a buffer, and so moved it from under what was written before.
            self._still_written(valid_for)[size] = written
        written.run()

    def _still_written(self, valid_for: Hashable) -> dict[Hashable, WrittenCalls]:
        """The steps written down, less those that point to memory no longer in use."""
        now = (valid_for, self._buffers.num_moves)
        if now != self._written_for or len(self._written) >= WRITTEN_STEPS_MAX:
            self._written_for = now
            self._written.clear()
        return self._written
