"""Decides what each step computes: who is admitted, how many tokens each sequence gets, who has to go.

There is no prefill phase and no decode phase. Every sequence has tokens it knows and tokens it has computed,
and a step lets sequences catch up, within a budget of tokens. Knows counts only: no token values, no tensors,
no clock.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from ..request import PRIORITY_RANKS
from .kv_blocks import BlockPool
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """`num_tokens` tokens of one sequence to compute in this step, from its `num_computed_tokens` on."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Computes the sequence's last known token, so the next one can be sampled."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens


@dataclass(slots=True)
class _Draft:
    """A step being planned."""

    tokens_left: int
    token_counts: dict[Sequence, int] = field(default_factory=dict)
    preempted: set[Sequence] = field(default_factory=set)

    def put(self, sequence: Sequence) -> None:
        count = min(sequence.num_uncomputed_tokens, self.tokens_left)
        if count:
            self.token_counts[sequence] = count
            self.tokens_left -= count


class Batcher:
    """Sequences waiting and running, each list most urgent first (class, then arrival).

    Three promises, which the tests hold it to:
      - a step has at most `max_num_batched_tokens` tokens, of at most `max_num_seqs` sequences;
      - a waiting sequence of a more urgent class gets slot and blocks from less urgent ones at the next step;
      - the most urgent sequence always advances, even if KV memory is only one sequence wide, because it may
        evict all others. The caller sees to it that each fits alone.
    """

    def __init__(
        self, pool: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int, reuse_prefixes: bool = True
    ) -> None:
        self._pool = pool
        self._reuse_prefixes = reuse_prefixes
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_tokens_reused = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_urgency)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and give back its blocks. Its content stays findable."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._release(sequence)

    def plan(self) -> list[Chunk]:
        """Choose this step's chunks, most urgent class first. Blocks for them are allocated on return."""
        draft = _Draft(self._max_num_batched_tokens)
        for rank in PRIORITY_RANKS.values():
            # Oldest first. Prompts were taken in this order, so those that decode go before those that read.
            for sequence in [member for member in self.running if member.rank == rank]:
                self._continue(sequence, draft)
            self._admit(rank, draft)
        return [Chunk(sequence, count) for sequence, count in draft.token_counts.items()]

    def advance(self, chunk: Chunk) -> None:
        """Note that a chunk is being computed: whatever is launched after it finds its KV in memory."""
        chunk.sequence.num_computed_tokens += chunk.num_tokens

    def publish(self, chunk: Chunk, start: int) -> None:
        """Let others find the blocks that a chunk has filled; it began at token `start` of its sequence.

        All its tokens are known by now. If its sequence has lost blocks since, those are not published.
        """
        sequence, size = chunk.sequence, self._pool.block_size
        stop = min(start + chunk.num_tokens, sequence.num_computed_tokens)
        if self._reuse_prefixes and stop // size > start // size:
            digests = sequence.digests(stop // size, size, self._pool.root_digest)
            for index in range(start // size, stop // size):
                self._pool.publish(sequence.blocks[index], digests[index])

    def check_integrity(self) -> None:
        """Assert that the block pool and the sequences agree, and that both lists are in order."""
        self._pool.check_integrity([sequence.blocks for sequence in self.running])
        assert all(not sequence.blocks for sequence in self.waiting), "a waiting sequence holds blocks"
        assert len(self.running) <= self._max_num_seqs, f"{len(self.running)} running"
        for members in (self.waiting, self.running):
            assert members == sorted(members, key=_urgency), "out of order"
        for sequence in self.running:
            assert sequence.num_computed_tokens <= len(sequence.blocks) * self._pool.block_size

    def _continue(self, sequence: Sequence, draft: _Draft) -> None:
        """Give a running sequence its tokens, evicting from the least urgent end if it has to grow."""
        missing = self._pool.blocks_for(sequence.num_tokens) - len(sequence.blocks)
        if sequence in draft.preempted or draft.tokens_left == 0:
            return
        while missing > self._pool.num_free:
            victim = self.running[-1]
            self._preempt(victim, draft)
            if victim is sequence:
                return
        sequence.blocks += self._pool.allocate(missing)
        draft.put(sequence)

    def _admit(self, rank: int, draft: _Draft) -> None:
        while self.waiting and self.waiting[0].rank == rank and draft.tokens_left > 0:
            sequence = self.waiting[0]
            if not self._seat(sequence, draft):
                return
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=_urgency)
            draft.put(sequence)

    def _seat(self, sequence: Sequence, draft: _Draft) -> bool:
        """Get a slot and blocks for everything the sequence knows; False leaves all as it was."""
        size = self._pool.block_size
        # The last known token is always computed again: its logits are what we are after.
        num_reusable = (sequence.num_tokens - 1) // size if self._reuse_prefixes else 0
        prefix = self._pool.acquire_prefix(sequence.digests(num_reusable, size, self._pool.root_digest))
        missing = self._pool.blocks_for(sequence.num_tokens) - len(prefix)
        if not self._make_room(sequence, missing, draft):
            self._pool.release(prefix)
            return False
        sequence.blocks = prefix + self._pool.allocate(missing)
        sequence.num_computed_tokens = len(prefix) * size
        self.num_tokens_reused += sequence.num_computed_tokens
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        return True

    def _make_room(self, sequence: Sequence, missing: int, draft: _Draft) -> bool:
        """See that a slot and `missing` blocks are free, evicting less urgent classes if that is enough."""
        # One spare block for each running sequence: or the newcomer would be evicted by their next token.
        if self._has_room(missing + len(self.running)):
            return True
        victims = [other for other in self.running if other.rank > sequence.rank]
        reachable = self._pool.num_free + sum(len(victim.blocks) for victim in victims)
        if not victims or reachable < missing:
            return False
        while victims and not self._has_room(missing):
            self._preempt(victims.pop(), draft)
        return self._has_room(missing)

    def _has_room(self, blocks: int) -> bool:
        return len(self.running) < self._max_num_seqs and blocks <= self._pool.num_free

    def _preempt(self, victim: Sequence, draft: _Draft) -> None:
        """Send a sequence back to wait; it will recompute what is no longer in memory by then."""
        # The plan goes from most urgent to least, and victims are the least: their turn is yet to come.
        assert victim not in draft.token_counts, f"{victim.id} preempted after it was planned"
        draft.preempted.add(victim)
        self.running.remove(victim)
        self._release(victim)
        insort(self.waiting, victim, key=_urgency)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed_tokens = 0


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return sequence.urgency
