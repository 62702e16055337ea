"""Partial preemption: a sequence releases tail blocks, and no more than are needed.

It keeps the rest while it waits, so continuing costs only what was lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from .kv_blocks import BlockPool
from .sequence import Sequence, urgency


def tail_to_free(sequence: Sequence, needed: int, pool: BlockPool) -> tuple[int, int]:
    """How many tail blocks to release for `needed` to become free, and how many do.

    Shared blocks do not become free, and less than `needed` may. None are released if `needed` is 0 or less.
    """
    num_released = freed = 0
    for block in reversed(sequence.blocks):
        if freed >= needed:
            break
        num_released += 1
        freed += not pool.is_shared(block)
    return num_released, freed


def release_tail(sequence: Sequence, needed: int, pool: BlockPool) -> None:
    """Release tail blocks until `needed` have become free, or none is left."""
    num_released, _ = tail_to_free(sequence, needed, pool)
    kept = len(sequence.blocks) - num_released
    pool.release(sequence.drop_blocks(kept))
    sequence.num_computed_tokens = min(sequence.num_computed_tokens, kept * pool.block_size)


def least_urgent(candidates: Iterable[Sequence], pool: BlockPool) -> Sequence | None:
    """Which sequence releases blocks: of the least urgent class the youngest, so that those before it end.

    None if no candidate has a block that would become free.
    """
    for candidate in sorted(candidates, key=urgency, reverse=True):
        if not all(map(pool.is_shared, reversed(candidate.blocks))):
            return candidate
    return None
