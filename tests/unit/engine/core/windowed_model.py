"""A model that only counts, over a memory that knows what lies in each slot: what a token sees is checked."""

from collections import deque

from nightshift_engine.core.batcher import Batcher, Chunk
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.request import PriorityClass, Request
from nightshift_engine.core.sequence import Sequence

Content = tuple[int, int]
"""Contents of a slot: the group of layers, and the hash of all tokens up to the slot's own."""


class WindowedModel:
    """Steps as the engine makes them; with `overlaps` a step is settled after the next one was launched."""

    def __init__(
        self,
        windows: tuple[int | None, ...],
        *,
        blocks: int,
        block_size: int = 4,
        slots: int = 8,
        budget: int = 16,
        reuses_prefixes: bool = True,
        overlaps: bool = False,
    ) -> None:
        self.pool = BlockPool(blocks, block_size, num_kept_min=2)
        self.batcher = Batcher(
            self.pool,
            max_num_seqs=slots,
            max_num_batched_tokens=budget,
            reuse_prefixes=reuses_prefixes,
            windows=windows,
        )
        self.windows, self.block_size, self.overlaps = windows, block_size, overlaps
        self.most_held = 0
        self.finished: list[str] = []
        self._alive: dict[str, Sequence] = {}
        self._arrivals = 0
        self._memory: dict[tuple[int, int], Content] = {}
        self._in_flight: deque[list[tuple[Chunk, int, bool]]] = deque()

    @property
    def capacity(self) -> int:
        return self.batcher.tables.capacity(1_000)

    @property
    def alive(self) -> list[Sequence]:
        return list(self._alive.values())

    def add(self, prompt: list[int], new: int = 4, priority: PriorityClass = "standard") -> Sequence:
        sequence = Sequence(
            Request(str(self._arrivals), prompt, priority=priority),
            arrival=self._arrivals,
            num_tokens_max=len(prompt) + new,
            num_groups=len(self.windows),
        )
        self._arrivals += 1
        self._alive[sequence.id] = sequence
        self.batcher.add(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        del self._alive[sequence.id]
        self.batcher.remove(sequence)
        self.batcher.check_integrity()

    def step(self) -> list[Chunk]:
        chunks = self.batcher.plan()
        self.batcher.check_integrity()
        assert chunks or self._in_flight, "work is left, but nothing was planned or is in flight"
        launched = [(chunk, chunk.sequence.num_computed_tokens, chunk.is_last) for chunk in chunks]
        for chunk, start, _ in launched:
            self._write(chunk, start)
        for chunk, start, _ in launched:
            self._check_what_is_seen(chunk, start)
        for row, (chunk, _, is_last) in enumerate(launched):
            self.batcher.advance(chunk)
            if is_last:
                chunk.sequence.promise(row)
        self.most_held = max(self.most_held, self.pool.num_blocks - self.pool.num_free)
        if self._in_flight:
            self._settle()
        self._in_flight.append(launched)
        if not self.overlaps:
            self._settle()
        self.batcher.check_integrity()
        return chunks

    def run(self, steps_max: int = 4_000) -> None:
        for _ in range(steps_max):
            if not self.batcher.has_work:
                while self._in_flight:
                    self._settle()
                return
            self.step()
        raise AssertionError(f"not done after {steps_max} steps")

    def _settle(self) -> None:
        launched = self._in_flight.popleft()
        for chunk, start, _ in launched:
            self.batcher.publish(chunk, start)
        for chunk, _, is_last in launched:
            sequence = chunk.sequence
            if not is_last:
                continue
            sequence.num_promised -= 1
            if sequence.id in self._alive:
                sequence.append(self._answer(sequence))
                if sequence.is_full:
                    self.abort(sequence)
                    self.finished.append(sequence.id)

    def _answer(self, sequence: Sequence) -> int:
        return sum(sequence.token_ids) % 2

    def _tokens(self, sequence: Sequence) -> list[int]:
        """Includes the promised tokens, which will be these."""
        tokens = list(sequence.token_ids)
        for _ in range(sequence.num_promised):
            tokens.append(sum(tokens) % 2)
        return tokens

    def _slot(self, sequence: Sequence, group: int, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.block_size)
        table = sequence.tables[group]
        assert table.first <= index < table.end, f"token {position} has no block in group {group}"
        assert sequence.block_rows[group, index] == table.blocks[index - table.first], "the row is another"
        return table.blocks[index - table.first], offset

    def _contents(self, sequence: Sequence) -> list[int]:
        contents, digest = [], 0
        for token in self._tokens(sequence):
            digest = hash((digest, token))
            contents.append(digest)
        return contents

    def _write(self, chunk: Chunk, start: int) -> None:
        contents = self._contents(chunk.sequence)
        for group in range(len(self.windows)):
            for position in range(start, start + chunk.num_tokens):
                self._memory[self._slot(chunk.sequence, group, position)] = (group, contents[position])

    def _check_what_is_seen(self, chunk: Chunk, start: int) -> None:
        contents = self._contents(chunk.sequence)
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, start - window + 1)
            for position in range(first, start + chunk.num_tokens):
                stored = self._memory[self._slot(chunk.sequence, group, position)]
                assert stored == (group, contents[position]), f"token {position} sees another's KV"
