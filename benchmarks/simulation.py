"""The real batcher over a model that only counts: rows come, steps are planned and take what a formula says.

No clock and no model: the same rows give the same counts on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workers.engine.batching.batcher import Batcher
from workers.engine.batching.draft import Chunk, step_shape
from workers.engine.batching.kv_blocks import BlockPool
from workers.engine.batching.sequence import Sequence as EngineSequence
from workers.engine.batching.step_time import StepShape
from workers.engine.request import PriorityClass, Request

BLOCK_SIZE = 32
NEVER = 10**9


@dataclass(frozen=True)
class Machine:
    """Seconds of a step: max(weights, per token · tokens) + per KV token · KV tokens."""

    weights_s: float = 0.009
    per_token_s: float = 85e-6
    per_kv_token_s: float = 0.5e-6

    def seconds(self, shape: StepShape) -> float:
        return max(self.weights_s, self.per_token_s * shape.tokens) + self.per_kv_token_s * shape.kv_tokens


MEDIUM = Machine()
"""About the medium checkpoint of the benchmarks in bfloat16 on two cores with AMX."""
LARGE = Machine(weights_s=0.1, per_token_s=1e-3, per_kv_token_s=2e-6)
"""Decoding alone takes longer than the interactive budget of 50 ms."""
CRAWLING = Machine(weights_s=0.06, per_token_s=0.06, per_kv_token_s=0.0)
"""A single token takes longer than that."""


@dataclass(frozen=True)
class Row:
    """One request: the kind of traffic it belongs to, how long its answer will be, and when it comes."""

    kind: str
    tokens: Sequence[int]
    num_output_tokens: int
    max_tokens: int
    at_step: int = 0
    at_s: float = 0.0
    flow: str = ""

    @property
    def is_online(self) -> bool:
        return self.kind in ("chat", "online", "flood")

    @property
    def priority(self) -> PriorityClass:
        return "interactive" if self.kind == "chat" else "background"


@dataclass
class Counts:
    """What a run took."""

    steps: int = 0
    seconds: float = 0.0
    preemptions: int = 0
    recomputed: int = 0
    reused: int = 0
    out_of_memory: int = 0
    output_tokens: dict[str, int] = field(default_factory=dict)
    """By kind of row."""
    wait_steps: dict[str, list[int]] = field(default_factory=dict)
    """From arrival to first token, by kind of row."""
    wait_seconds: dict[str, list[float]] = field(default_factory=dict)


class Simulation:
    """A batcher and the rows that come to it."""

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        num_blocks: int = 4_000,
        slots: int = 64,
        budget: int = 1024,
        step_budget_ms: float | None = None,
        machine: Machine = MEDIUM,
        tokens_fitting: int = NEVER,
        reuse_prefixes: bool = True,
    ) -> None:
        self._pool = BlockPool(num_blocks, BLOCK_SIZE)
        self._batcher = Batcher(
            self._pool,
            max_num_seqs=slots,
            max_num_batched_tokens=budget,
            reuse_prefixes=reuse_prefixes,
            step_budget_ms=step_budget_ms,
        )
        self._coming = sorted(rows, key=lambda row: (row.at_step, row.at_s), reverse=True)
        self._machine = machine
        self._tokens_fitting = tokens_fitting
        self._rows: dict[str, Row] = {}
        self._arrived: dict[str, tuple[int, float]] = {}
        self.counts = Counts()

    def run(self, steps_max: int = 20_000, seconds_max: float = float("inf")) -> Counts:
        """Run until all rows are done, or for so many steps or seconds."""
        counts = self.counts
        while self._has_work and counts.steps < steps_max and counts.seconds < seconds_max:
            self._take_arrivals()
            chunks = self._batcher.plan() if self._batcher.has_work else []
            counts.steps += 1
            if sum(chunk.num_tokens for chunk in chunks) > self._tokens_fitting:
                counts.out_of_memory += 1
                self._batcher.out_of_memory(chunks)
            elif chunks:
                self._compute(chunks)
            elif self._coming:
                counts.seconds = max(counts.seconds, self._coming[-1].at_s)
        counts.preemptions = self._batcher.num_preemptions
        counts.recomputed = self._batcher.num_tokens_recomputed
        counts.reused = self._batcher.num_tokens_reused
        return counts

    @property
    def _has_work(self) -> bool:
        return bool(self._coming) or self._batcher.has_work

    def _take_arrivals(self) -> None:
        counts = self.counts
        while self._coming and self._is_due(self._coming[-1]):
            row = self._coming.pop()
            number = len(self._rows)
            group = None if row.is_online else "job"
            self._rows[str(number)] = row
            self._arrived[str(number)] = (counts.steps, row.at_s or counts.seconds)
            request = Request(str(number), row.tokens, priority=row.priority, group=group, flow=row.flow)
            limit = len(row.tokens) + row.max_tokens
            self._batcher.add(EngineSequence(request, arrival=number, num_tokens_max=limit))

    def _is_due(self, row: Row) -> bool:
        return row.at_step <= self.counts.steps and row.at_s <= self.counts.seconds

    def _compute(self, chunks: list[Chunk]) -> None:
        shape = step_shape(chunks)
        seconds = self._machine.seconds(shape)
        sampled = [chunk.sequence for chunk in chunks if chunk.is_last]
        starts = [chunk.sequence.num_computed_tokens for chunk in chunks]
        for chunk, start in zip(chunks, starts, strict=True):
            self._batcher.advance(chunk)
            self._batcher.publish(chunk, start)
        self._batcher.observe(shape, seconds)
        self.counts.seconds += seconds
        for sequence in sampled:
            self._sample(sequence)

    def _sample(self, sequence: EngineSequence) -> None:
        row, counts = self._rows[sequence.id], self.counts
        sequence.append(1)
        counts.output_tokens[row.kind] = counts.output_tokens.get(row.kind, 0) + 1
        if sequence.num_output_tokens == 1:
            step, second = self._arrived[sequence.id]
            counts.wait_steps.setdefault(row.kind, []).append(counts.steps - step)
            counts.wait_seconds.setdefault(row.kind, []).append(counts.seconds - second)
        if sequence.num_output_tokens >= row.num_output_tokens or sequence.is_full:
            self._batcher.remove(sequence)
