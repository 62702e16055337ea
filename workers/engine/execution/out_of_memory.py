"""Which failures of a forward pass mean that it was too large for the machine."""

from __future__ import annotations

import torch

_CPU_ALLOCATOR_SAYS = ("can't allocate memory", "not enough memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """True if a smaller pass may succeed where this one failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_ALLOCATOR_SAYS)
