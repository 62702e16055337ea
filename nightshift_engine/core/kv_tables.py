"""Fills and empties the block tables of sequences from one pool, group of layers by group.

Tables of windowed groups hold the blocks in the window and the chunk: those before are given back when their
step is settled, and can be found as long as their content is there.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from .kv_blocks import BlockPool
from .kv_groups import BlockDemand
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """Blocks of a known prefix, one reference taken on each."""

    num_blocks: int
    """The end of the prefix."""
    runs: list[tuple[int, list[int]]]
    """Index of the first block of each group, and the blocks from there to the end."""

    @property
    def blocks(self) -> list[int]:
        return [block for _, run in self.runs for block in run]


class KvTables:
    """The blocks that sequences hold of one pool, in each group of layers with these windows."""

    def __init__(self, pool: BlockPool, windows: tuple[int | None, ...] = (None,)) -> None:
        assert list(windows) == sorted(windows, key=lambda window: window is not None), "full groups first"
        self.pool, self.windows = pool, windows
        self.num_groups = len(windows)
        self._demand = BlockDemand(windows, pool.block_size)
        self._unlimited = range(self._demand.num_unlimited)
        self._windowed = range(self._demand.num_unlimited, self.num_groups)
        # KV of layers in different groups differs, so their blocks have different names.
        self._suffixes = [b"", *(group.to_bytes(2, "little") for group in range(1, self.num_groups))]

    @property
    def has_windows(self) -> bool:
        return len(self._windowed) > 0

    def capacity(self, tokens_max: int) -> int:
        """Tokens, up to `tokens_max`, that a sequence alone may have."""
        return self._demand.tokens_in(self.pool.num_blocks, tokens_max)

    # Growing

    def allocate(self, sequence: Sequence, num_new: int, num_spared: int) -> int:
        """Allocates blocks for up to `num_new` next tokens, leaving `num_spared`; returns for how many."""
        free = self.pool.num_free
        ends = self._ends(sequence, num_new)
        allowed = max(0, free - num_spared)
        if self.has_windows and self._missing(sequence, ends) > allowed:
            num_new, ends = self._cut_to_fit(sequence, num_new, allowed)
        if self._missing(sequence, ends) > free:
            return 0
        self._extend(sequence, ends)
        return num_new

    def allocate_ahead(self, sequence: Sequence, num_drafted: int, num_spared: int) -> int:
        """Allocates blocks for up to `num_drafted` tokens after those that are known, leaving `num_spared`;
        returns for how many.
        """
        end, num_groups = self.pool.blocks_for(sequence.num_tokens + num_drafted), self.num_groups
        if self._missing(sequence, [end] * num_groups) > max(0, self.pool.num_free - num_spared):
            end = sequence.num_blocks
        self._extend(sequence, [end] * num_groups)
        return min(num_drafted, end * self.pool.block_size - sequence.num_tokens)

    def missing(self, sequence: Sequence) -> int:
        """Blocks that a running sequence's next token needs besides those held."""
        return self._missing(sequence, self._ends(sequence, 1))

    def is_about_to_give_back(self, sequence: Sequence) -> bool:
        """Whether settling the step in flight brings blocks back from this running sequence."""
        computed, first_needed = sequence.num_computed_tokens, self._demand.first_needed
        return any(sequence.tables[g].first < first_needed(g, computed) for g in self._windowed)

    # Admission

    def is_whole(self, sequence: Sequence) -> bool:
        """Whether all blocks held are full and computed, so that a prefix found may follow them."""
        held, rest = divmod(sequence.num_computed_tokens, self.pool.block_size)
        return rest == 0 and all(table.end == held for table in sequence.tables)

    def num_known(self, sequence: Sequence, digests: Seq[bytes]) -> int:
        """The number of the first blocks, named by `digests`, that a sequence holds or would find."""
        return self._find(sequence, digests)[0]

    def acquire_prefix(self, sequence: Sequence, digests: Seq[bytes]) -> FoundPrefix:
        """Takes a reference on what can be found of the prefix beyond what the sequence holds."""
        pool, held = self.pool, sequence.num_blocks
        if self.num_groups == 1 and not self.has_windows:
            run = pool.acquire_prefix(digests[held:])
            return FoundPrefix(held + len(run), [(held, run)])
        num_blocks, missed = self._find(sequence, digests)
        if missed is not None:
            pool.note_miss(missed)
        runs = []
        for group in range(self.num_groups):
            first = self._demand.first_needed(group, num_blocks * pool.block_size)
            start = min(num_blocks, max(held, first))
            keys = [self._key(group, digest) for digest in digests[start:num_blocks]]
            runs.append((start, pool.acquire_prefix(keys)))
            assert len(runs[-1][1]) == len(keys), "a block was lost between finding and taking it"
        return FoundPrefix(num_blocks, runs)

    def missing_to_admit(self, sequence: Sequence, prefix: FoundPrefix | None) -> int:
        """Blocks that a waiting sequence needs besides those held and found."""
        return sum(max(0, end - start) for start, end in self._admission(sequence, prefix))

    def admit(self, sequence: Sequence, prefix: FoundPrefix | None) -> int:
        """Allocates them, and takes over what was found; returns how many tokens that saves."""
        before, size = sequence.num_computed_tokens, self.pool.block_size
        ends = [end for _, end in self._admission(sequence, prefix)]
        if prefix is not None and prefix.num_blocks * size > before:
            for group, (start, run) in enumerate(prefix.runs):
                if start > sequence.tables[group].end:
                    self.pool.release(sequence.skip_blocks(group, start))
                sequence.add_blocks(run, group)
            sequence.num_computed_tokens = prefix.num_blocks * size
        self.release_passed(sequence, sequence.num_computed_tokens)
        self._extend(sequence, ends)
        return sequence.num_computed_tokens - before

    # Giving back

    def publish(self, sequence: Sequence, start: int, digests: Seq[bytes]) -> None:
        """Lets others find the full blocks from the `start`-th on, named by `digests`."""
        for group, table in enumerate(sequence.tables):
            first, blocks = table.between(start, start + len(digests))
            names = digests[first - start : first - start + len(blocks)]
            self.pool.publish(blocks, [self._key(group, digest) for digest in names] if group else names)

    def release_passed(self, sequence: Sequence, num_settled: int) -> None:
        """Gives back the blocks that no token from the `num_settled`-th on sees."""
        for group in self._windowed:
            first = self._demand.first_needed(group, num_settled)
            if first > sequence.tables[group].first:
                self.pool.release(sequence.skip_blocks(group, first))

    def release_drafted(self, sequence: Sequence) -> None:
        """Gives back blocks that were allocated for drafted tokens and not accepted."""
        end = self.pool.blocks_for(sequence.num_tokens)
        if max(table.end for table in sequence.tables) > end:
            self.pool.release(sequence.drop_blocks(end))

    def release_ahead(self, sequence: Sequence) -> None:
        """Gives back blocks of windowed groups that hold nothing yet: its next chunk may be another."""
        if self.has_windows:
            end = self.pool.blocks_for(sequence.num_computed_tokens)
            for group in self._windowed:
                self.pool.release(sequence.drop_blocks_from(group, end))

    def release_tail(self, sequence: Sequence, needed: int) -> None:
        """Gives back tail blocks until `needed` are free: all where the window before the tail is gone."""
        kept, _ = self.tail_to_free(sequence, needed)
        self.pool.release(sequence.drop_blocks(kept))
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, kept * self.pool.block_size)

    def tail_to_free(self, sequence: Sequence, needed: int) -> tuple[int, int]:
        """Numbers of blocks: those of each group to keep so that `needed` become free, and those that do."""
        kept, freed = max(table.end for table in sequence.tables), 0
        while kept and freed < needed:
            kept -= 1
            freed += self._freed_at(sequence, kept)
        if not self._can_resume(sequence, kept):
            freed += sum(self._freed_at(sequence, index) for index in range(kept))
            kept = 0
        return kept, freed

    def names(self, sequence: Sequence) -> list[bytes]:
        """Names of all its blocks whose digests are known, in all groups."""
        every = range(self.num_groups)
        return [self._key(group, digest) for group in every for digest in sequence.block_digests]

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Asserts that pool and tables agree, and that what is computed and can be seen is held."""
        self.pool.check_integrity([sequence.blocks for sequence in sequences])
        for sequence in sequences:
            tables, computed = sequence.tables, sequence.num_computed_tokens
            assert len(tables) == self.num_groups, "a table is missing"
            assert sequence.num_blocks == min(table.end for table in tables), "the shortest table is another"
            assert computed <= sequence.num_blocks * self.pool.block_size, "computed without a block"
            for group, table in enumerate(tables):
                needed = self._demand.first_needed(group, computed)
                assert table.first <= needed, "a block was given back that can be seen"
                row, before = sequence.block_rows[group].tolist(), table.blocks[:1] * table.first
                assert row == before + table.blocks + [0] * (len(row) - table.end), "a row is stale"

    def _key(self, group: int, digest: bytes) -> bytes:
        return digest + self._suffixes[group]

    def _ends(self, sequence: Sequence, num_new: int) -> list[int]:
        """The ends of tables for `num_new` tokens: full groups have room for all that are known."""
        blocks_for = self.pool.blocks_for
        every, next = blocks_for(sequence.num_tokens), blocks_for(sequence.num_computed_tokens + num_new)
        return [every] * len(self._unlimited) + [next] * len(self._windowed)

    def _missing(self, sequence: Sequence, ends: Seq[int]) -> int:
        return sum(max(0, end - table.end) for table, end in zip(sequence.tables, ends, strict=True))

    def _cut_to_fit(self, sequence: Sequence, num_new: int, num_allowed: int) -> tuple[int, list[int]]:
        """Fewer tokens, up to the end of a block, for which there are blocks; and where tables then end."""
        computed, size = sequence.num_computed_tokens, self.pool.block_size
        least = size - computed % size  # to the end of the block that the next token is in
        while num_new > least:
            num_new = max(least, (-(-(computed + num_new) // size) - 1) * size - computed)
            ends = self._ends(sequence, num_new)
            if self._missing(sequence, ends) <= num_allowed:
                return num_new, ends
        return num_new, self._ends(sequence, num_new)

    def _extend(self, sequence: Sequence, ends: Seq[int]) -> None:
        for group, end in enumerate(ends):
            missing = end - sequence.tables[group].end
            if missing > 0:
                sequence.add_blocks(self.pool.allocate(missing), group)

    def _admission(self, sequence: Sequence, prefix: FoundPrefix | None) -> list[tuple[int, int]]:
        """The end of each group's table with what was found, and the end that it has to have."""
        computed, size = sequence.num_computed_tokens, self.pool.block_size
        if prefix is not None:
            computed = max(computed, prefix.num_blocks * size)
        num_shared = prefix.num_blocks if prefix is not None else 0
        return [
            (max(table.end, num_shared), self._demand.end_at_least(group, sequence.num_tokens, computed))
            for group, table in enumerate(sequence.tables)
        ]

    def _find(self, sequence: Sequence, digests: Seq[bytes]) -> tuple[int, bytes | None]:
        """The end, in blocks, of the longest prefix held or known, and the name of one that is missing."""
        pool, held, count = self.pool, sequence.num_blocks, len(digests)
        missed = None
        for group in self._unlimited:
            names = [self._key(group, digest) for digest in digests[held:count]] if group else digests[held:]
            known = held + pool.num_known(names)
            if known < count:
                count, missed = known, self._key(group, digests[known])
        while count > held and (unknown := self._last_unknown(digests, held, count)) is not None:
            count, name = unknown
            missed = missed or name
        return max(count, held), missed

    def _last_unknown(self, digests: Seq[bytes], held: int, count: int) -> tuple[int, bytes] | None:
        """The last block missing in the windows before the `count`-th, and its name; None if none is."""
        is_known, size = self.pool.is_known, self.pool.block_size
        for group in self._windowed:
            suffix = self._suffixes[group]
            first = max(held, self._demand.first_needed(group, count * size))
            for index in range(count - 1, first - 1, -1):
                if not is_known(digests[index] + suffix):
                    return index, digests[index] + suffix
        return None

    def _freed_at(self, sequence: Sequence, index: int) -> int:
        """The number of the blocks at this index that no other sequence holds."""
        blocks = [block for table in sequence.tables for block in table.between(index, index + 1)[1]]
        return sum(not self.pool.is_shared(block) for block in blocks)

    def _can_resume(self, sequence: Sequence, kept: int) -> bool:
        """Whether the first `kept` blocks are enough to go on after them."""
        computed = min(sequence.num_computed_tokens, kept * self.pool.block_size)
        return all(
            sequence.tables[group].first <= self._demand.first_needed(group, computed)
            for group in self._windowed
        )
