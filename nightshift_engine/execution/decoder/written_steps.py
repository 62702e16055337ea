"""Decoding steps that come again: their kernel calls are written down once for each size."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ..device.native_calls import WrittenCalls
from .buffers import Buffers

WRITTEN_STEPS_MAX = 256
"""Steps of so many sizes are kept written down."""


class WrittenSteps:
    """What is written down points to memory of `buffers`, and is dropped where they move."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._written: dict[int, WrittenCalls] = {}
        self._written_for: tuple[object, ...] = ()

    def repeat(self, size: int, valid_for: Hashable, compute: Callable[[], None]) -> None:
        """Do what `compute` does, all of it calls of native kernels: a step of this size.

        What was written down for something else than `valid_for` is dropped. Raises MemoryError.
        """
        if (written := self._still_written(valid_for).get(size)) is None:
            written = WrittenCalls()
            with written.writing():
                compute()
            # Writing may have grown a buffer, and so moved it from under what was written before.
            self._still_written(valid_for)[size] = written
        written.run()

    def _still_written(self, valid_for: Hashable) -> dict[int, WrittenCalls]:
        """The steps written down, less those that point to memory no longer in use."""
        now = (valid_for, self._buffers.num_moves)
        if now != self._written_for or len(self._written) >= WRITTEN_STEPS_MAX:
            self._written_for = now
            self._written.clear()
        return self._written
