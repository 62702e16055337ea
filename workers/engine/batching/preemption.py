"""Partial preemption: a sequence releases tail blocks, and no more than are needed (`KvTables.release_tail`).

It keeps the rest while it waits, so continuing costs only what was lost. Here is said which sequence does.
"""

from __future__ import annotations

from collections.abc import Iterable

from .kv_blocks import BlockPool
from .sequence import Sequence, urgency


def least_urgent(candidates: Iterable[Sequence], pool: BlockPool) -> Sequence | None:
    """Which sequence releases blocks: of the least urgent class the youngest, so that those before it end.

    None if no candidate has a block that would become free.
    """
    for candidate in sorted(candidates, key=urgency, reverse=True):
        if not all(map(pool.is_shared, reversed(candidate.blocks))):
            return candidate
    return None
