"""Partial preemption: a sequence releases tail blocks, and no more than are needed.

It keeps the rest while it waits, so continuing costs only what was lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from .kv_blocks import BlockPool
from .sequence import Sequence


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


def cheapest_victim(candidates: Iterable[Sequence], needed: int, pool: BlockPool) -> Sequence | None:
    """Which sequence releases blocks: least urgent class, then least progress lost per block, then youngest.

    None if no candidate has a block that would become free.
    """
    best, best_cost = None, (0, 0.0, 0)
    for candidate in candidates:
        num_released, freed = tail_to_free(candidate, needed, pool)
        if freed == 0:
            continue
        kept_tokens = (len(candidate.blocks) - num_released) * pool.block_size
        lost = max(0, candidate.num_computed_tokens - kept_tokens)
        rank, arrival = candidate.urgency
        cost = (-rank, lost / freed, -arrival)
        if best is None or cost < best_cost:
            best, best_cost = candidate, cost
    return best
