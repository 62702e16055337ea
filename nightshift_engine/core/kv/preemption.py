"""Partial preemption: a sequence releases tail blocks, and no more than are needed (`KvTables.release_tail`).

It keeps the rest while it waits, so continuing costs only what was lost. Here is said which sequence does.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..sequence import Sequence, urgency
from .kv_blocks import BlockPool


def least_urgent(candidates: Iterable[Sequence], pool: BlockPool, flow: str | None = None) -> Sequence | None:
    """Which sequence releases blocks: of the least urgent class the youngest, so that those before it end.

    `flow`: whose sequence needs them. In its class it takes its own before those of others, however young.
    None if no candidate has a block that would become free.
    """
    candidates = sorted(candidates, key=urgency, reverse=True)
    if flow is not None:
        candidates.sort(key=lambda candidate: (-candidate.rank, candidate.flow != flow))
    for candidate in candidates:
        if not all(map(pool.is_shared, reversed(candidate.blocks))):
            return candidate
    return None
