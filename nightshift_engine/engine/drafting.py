"""Tokens that a step drafts and verifies beside those it is to compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from ..core.batcher import Batcher
from ..core.speculation.speculator import Speculator
from ..core.steps import Chunk

PAUSE_S_MAX = 0.05
"""A longer pause between steps had another reason than that tokens were drafted."""


class Drafting:
    """Adds drafted tokens to steps of a batcher, and takes those that the model would have sampled."""

    def __init__(self, speculator: Speculator, batcher: Batcher, *, overlaps: bool) -> None:
        """`overlaps`: the device computes a step while the next one is planned."""
        self.speculator, self._batcher, self._overlaps = speculator, batcher, overlaps

    @property
    def is_due(self) -> bool:
        """Whether the next step is to have drafts, for which all tokens must be known."""
        return self.speculator.is_due

    def draft(self, chunks: list[Chunk], settled_s: float) -> None:
        """Adds drafted tokens to the chunks of a step just planned. The last step ended at `settled_s`."""
        is_due, begun_s = self.is_due, time.perf_counter()
        for chunk, draft in self.speculator.draft(chunks, self._batcher.room_for_drafts(chunks)):
            self._batcher.extend(chunk, draft)
        if is_due:
            now_s = time.perf_counter()
            # Where steps overlap, the device waits since the last one, if there was one just now.
            idle_s = now_s - settled_s if self._overlaps else 0.0
            self.speculator.note_attempt(idle_s if 0.0 < idle_s < PAUSE_S_MAX else now_s - begun_s)

    def verify(self, chunk: Chunk, tokens: Seq[int | None], take: Callable[[int], bool]) -> None:
        """Takes the tokens sampled for a chunk as long as each is the one drafted there.

        `take` appends the one of this index; False: the sequence has ended.
        """
        sequence, draft = chunk.sequence, chunk.draft
        num_accepted, is_rejected = 0, False
        for index, token in enumerate(tokens):
            is_alive = take(index)
            is_rejected = index < len(draft) and token != draft[index].token
            if is_rejected or index == len(draft) or not is_alive:
                break
            self._batcher.accept(sequence)
            num_accepted += 1
        self.speculator.judge(sequence, len(draft), num_accepted, is_rejected=is_rejected)
        self._batcher.tables.release_drafted(sequence)
