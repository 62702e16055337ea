"""What a decoding step costs on the host: planning, laying out, and the books after it. Without a model.

Each part is timed by the CPU time of the one thread that does it; the least is given, and the median. Three
kinds of steps:

  - all sequences decode;
  - a step holds at most 2,048 tokens; one sequence ends and one comes, with a prompt of the context's length,
    in as many steps as its chunks take, and a figure is the mean over these steps;
  - some end and as many come in every step, whose prompts are computed in it whole.

    python -m benchmarks.host [--sizes 256x8192,512x1024] [--steps 60] [--changes 4]
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import TypeVar

import torch

from workers.engine.batching.batcher import Batcher, Chunk
from workers.engine.batching.draft import step_shape
from workers.engine.batching.kv_blocks import BlockPool
from workers.engine.batching.sequence import Sequence as EngineSequence
from workers.engine.execution.step_layout import lay_out
from workers.engine.request import Request

BLOCK_SIZE = 32
OUTPUT_TOKENS = 1_000
STEP_SECONDS = 0.02
VOCAB_SIZE = 50_000
BATCHED_TOKENS = 2_048
CPU = torch.device("cpu")
PARTS = ("plan", "lay out", "advance", "settle")
WARM_UP_STEPS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds per step."""

    least: dict[str, float]
    median: dict[str, float]


class Host:
    """A batcher full of decoding sequences, and what the engine does around the model."""

    def __init__(self, num_seqs: int, context: int, changes: int, batched_tokens: int | None = None) -> None:
        """`batched_tokens`: at most so many in a step; None has room for all prompts that come."""
        blocks_per_seq = (context + OUTPUT_TOKENS) // BLOCK_SIZE + 1
        self._pool = BlockPool((num_seqs + 2 * changes) * blocks_per_seq, BLOCK_SIZE)
        self._batcher = Batcher(
            self._pool,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=batched_tokens or num_seqs + max(1, changes) * context,
            step_budget_ms=50.0,
        )
        self._context = context
        self._rng = random.Random(1)
        self._arrivals = 0
        self._seconds: dict[str, list[float]] = {part: [] for part in PARTS}
        self.add(num_seqs)
        while len(self._batcher.running) < num_seqs or self._batcher.waiting:
            self.step()

    def add(self, count: int) -> None:
        """New sequences, their prompts hashed, as the engine's callers leave them."""
        for _ in range(count):
            tokens = [self._rng.randrange(VOCAB_SIZE) for _ in range(self._context)]
            request = Request(str(self._arrivals), tokens, group="job")
            limit = self._context + OUTPUT_TOKENS
            sequence = EngineSequence(request, arrival=self._arrivals, num_tokens_max=limit)
            sequence.digests(self._context // BLOCK_SIZE, BLOCK_SIZE, self._pool.root_digest)
            self._arrivals += 1
            self._batcher.add(sequence)

    def end(self, count: int) -> None:
        for sequence in self._batcher.running[:count]:
            self._batcher.remove(sequence)

    def step(self) -> None:
        chunks = self._timed("plan", self._batcher.plan)
        self._timed("lay out", lambda: lay_out(chunks, BLOCK_SIZE, CPU))
        sampled = [chunk.sequence for chunk in chunks if chunk.is_last]
        starts = [chunk.sequence.num_computed_tokens for chunk in chunks]
        self._timed("advance", lambda: self._advance(chunks))
        self._timed("settle", lambda: self._settle(chunks, starts, sampled))

    def measure(self, steps: int, changes: int, period: int = 1) -> Cost:
        """The cost of a step, of `steps`, with as many ends and admissions in every `period`-th."""
        gc.collect()
        gc.disable()  # a worker's collections are those of the whole process
        for step in range((WARM_UP_STEPS + steps) * period):
            if step == WARM_UP_STEPS * period:
                self._seconds = {part: [] for part in PARTS}
            now = changes if step % period == 0 else 0
            self.add(now)
            self._timed("settle", partial(self.end, now))
            ended = self._seconds["settle"].pop()
            self.step()
            self._seconds["settle"][-1] += ended
        gc.enable()
        timings = {part: _means(seconds, period) for part, seconds in self._seconds.items()}
        timings["in all"] = [sum(parts) for parts in zip(*timings.values(), strict=True)]
        return Cost(
            {part: 1000 * min(values) for part, values in timings.items()},
            {part: 1000 * median(values) for part, values in timings.items()},
        )

    def _advance(self, chunks: list[Chunk]) -> None:
        step_shape(chunks)
        for chunk in chunks:
            self._batcher.advance(chunk)

    def _settle(self, chunks: list[Chunk], starts: list[int], sampled: list[EngineSequence]) -> None:
        self._batcher.observe(step_shape(chunks), STEP_SECONDS)
        for chunk, start in zip(chunks, starts, strict=True):
            self._batcher.publish(chunk, start)
        for sequence in sampled:
            sequence.append(7)

    def _timed(self, part: str, work: Callable[[], T]) -> T:
        start = time.thread_time()
        result = work()
        self._seconds[part].append(time.thread_time() - start)
        return result


def _means(values: Sequence[float], count: int) -> list[float]:
    """Of every `count` values after one another."""
    return [mean(values[start : start + count]) for start in range(0, len(values), count)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a decoding step costs on the host.")
    parser.add_argument("--sizes", default="256x8192,512x1024", help="running x tokens of context, by commas")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--changes", type=int, default=4, help="ends and admissions per step")
    options = parser.parse_args(arguments)
    print("| running x context | |", " | ".join([*PARTS, "in all"]), "| CPU ms per step: least (median)")
    for size in options.sizes.split(","):
        num_seqs, context = map(int, size.split("x"))
        most = max(BATCHED_TOKENS, 2 * num_seqs)
        period = -(-context // (most - num_seqs))
        for name, changes, batched_tokens, every in (
            ("decoding", 0, None, 1),
            (f"1 ends and 1 comes in {period} steps of up to {most}", 1, most, period),
            (f"{options.changes} end and {options.changes} come in each", options.changes, None, 1),
        ):
            host = Host(num_seqs, context, changes, batched_tokens)
            cost = host.measure(max(2, options.steps // every), changes, every)
            cells = [f"{cost.least[part]:.2f} ({cost.median[part]:.2f})" for part in cost.least]
            print(f"| {num_seqs} x {context} | {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
