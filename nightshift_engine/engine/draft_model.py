"""A smaller model that drafts: it reads the same tokens into KV memory of its own, under the same blocks.

The tokens that it has read of a block count until the block is allocated anew: so it finds prefixes that are
shared, and reads what was evicted or computed without it. Drafted tokens are read again once accepted.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection
from collections.abc import Sequence as Seq

from ..core.batcher import Batcher
from ..core.sequence import Sequence
from ..core.speculation.rows import DraftedRow, drafted_rows
from ..core.steps import Chunk, StepTimeModel, step_shape
from ..loading.draft import READ_TOKENS_MAX
from ..sampling.sampler import Sampler
from .launched import Runner


class DraftModel:
    """Drafts for sequences of a batcher. A token is chosen as the model will choose its own: by the same
    parameters, grammar and random number.
    """

    def __init__(self, runner: Runner, batcher: Batcher, eos_token_ids: Collection[int]) -> None:
        """`runner` has KV memory of as many blocks as the batcher's pool."""
        self._runner, self._batcher, self._eos_token_ids = runner, batcher, eos_token_ids
        self._pool = batcher.tables.pool
        self.times = StepTimeModel()
        self.seconds = 0.0

    def num_unread(self, sequence: Sequence) -> int:
        """Known tokens that it has to read before it drafts: the last one at least, for its logits."""
        num_read = 0
        for block in sequence.tables[0].blocks:
            num_read += self._pool.num_read[block]
            if self._pool.num_read[block] < self._pool.block_size:
                break
        return max(1, sequence.num_tokens - num_read)

    def draft(self, wanted: Seq[tuple[Sequence, Seq[int], int]]) -> list[list[DraftedRow]]:
        """Drafts for sequences: these tokens, and then its own up to so many in all, or to the end of blocks.

        One with too many unread tokens for this step gets those given.
        """
        drafts, chunks, room = [], [], min(READ_TOKENS_MAX, self._batcher.tokens_left)
        self.seconds = 0.0
        for sequence, tokens, length in wanted:
            rows = drafted_rows(sequence, tokens)
            drafts.append(rows)
            length = self._batcher.reserve(sequence, length)
            if len(rows) == len(tokens) < length and room > 0:
                drafted = _Drafted(sequence, rows, length, self.num_unread(sequence))
                chunks.append(Chunk(drafted, min(drafted.num_uncomputed_tokens, room)))
                room -= chunks[-1].num_tokens
        while chunks:
            chunks = [Chunk(drafted, 1) for drafted in self._compute(chunks)]
        for (sequence, _, _), rows in zip(wanted, drafts, strict=True):
            if not rows:
                self._batcher.tables.release_drafted(sequence)
        return drafts

    def _compute(self, chunks: Seq[Chunk]) -> list[_Drafted]:
        """Reads chunks, and drafts a token for each sequence read to its end; returns those that go on."""
        begun_s, shape = time.perf_counter(), step_shape(chunks)
        logits, read = self._runner.forward(chunks), list[_Drafted]()
        for chunk in chunks:
            assert isinstance(chunk.sequence, _Drafted)
            self._note_read(chunk.sequence, chunk.num_tokens)
            if not chunk.sequence.num_uncomputed_tokens:
                read.append(chunk.sequence)
        unfinished = []
        if read:
            # A new one: it expects a sequence that it sampled for last to have one more token.
            sampler = Sampler(self._eos_token_ids)
            last = [drafted.rows[-1] if drafted.rows else drafted.known for drafted in read]
            tokens = sampler.sample(logits, last).tokens
            unfinished = [
                drafted for drafted, token in zip(read, tokens, strict=True) if self._take(drafted, token)
            ]
        seconds = time.perf_counter() - begun_s
        self.seconds += seconds
        if read:  # else a device may not have computed yet
            self.times.observe(shape, seconds)
        return unfinished

    def _note_read(self, drafted: _Drafted, num_tokens: int) -> None:
        """Counts the known ones among tokens that have been read."""
        size, blocks = self._pool.block_size, drafted.known.tables[0].blocks
        start = drafted.num_computed_tokens
        drafted.num_computed_tokens += num_tokens
        stop = min(drafted.num_computed_tokens, drafted.known.num_tokens)
        for index in range(start // size, self._pool.blocks_for(stop)):
            self._pool.num_read[blocks[index]] = min(size, stop - index * size)

    def _take(self, drafted: _Drafted, token: int | None) -> bool:
        """Appends a drafted token; returns whether another may follow."""
        if token is None:  # its logits are not finite
            self._runner.clear_blocks(drafted.known.tables[0].blocks)
            for block in drafted.known.tables[0].blocks:
                self._pool.num_read[block] = 0
            return False
        rows = drafted_rows(drafted.known, [token], drafted.rows)
        drafted.rows += rows
        drafted.token_ids.append(token)
        is_end = token in self._eos_token_ids and not drafted.known.sampling.ignore_eos
        return len(rows) > 0 and len(drafted.rows) < drafted.length and not is_end


class _Drafted(Sequence):
    """A sequence as the draft model reads it: drafted tokens follow the known ones; it has a single table."""

    __slots__ = ("known", "length", "rows")

    def __init__(self, known: Sequence, rows: list[DraftedRow], length: int, num_unread: int) -> None:
        """`rows` are the tokens drafted already; up to `length` are to be."""
        self.known, self.rows, self.length = known, rows, length
        self.token_ids = known.token_ids + array("q", [row.token for row in rows])
        self.num_computed_tokens = known.num_tokens - num_unread
        self.tables, self.block_rows, self.block_row = known.tables[:1], known.block_rows[:1], known.block_row
        self.num_promised = self.promised_row = self.num_to_score = 0
        self.adapter_slot = -1
