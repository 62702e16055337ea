"""Estimates what admitting bulk in groups saves, by the engine's batcher and a model of a GPU's costs.

    python -m benchmarks.device.admission

Nothing is computed: a step takes 1.5 ms and 30 ns for each token of context (Qwen3-0.6B on an H200), its
prompts a second for 444,000 tokens, and a step that carries prompts a fixed time m more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.fixtures.workloads import mixed_items
from benchmarks.report import Cell, report
from nightshift_engine.core.batcher import Batcher
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.request import Request
from nightshift_engine.core.sampling_params import SamplingParams
from nightshift_engine.core.sequence import Sequence as EngineSequence

STEP_S: Final = 1.5e-3
CONTEXT_TOKEN_S: Final = 30e-9
PROMPT_TOKEN_S: Final = 1 / 444_000
PROMPT_STEPS_MS: Final = (12.0, 3.0, 1.5, 0.5)
"""Values of m: 12 without graphs of steps that carry prompts."""
BLOCK_SIZE, BLOCKS = 32, 5_000

Lengths = tuple[int, int]
"""Tokens in and out."""


def seconds_by_cost(rows: Sequence[Lengths], *, in_groups: bool) -> tuple[int, Mapping[float, float]]:
    """Steps that carry prompts, and the seconds of the run for each of `PROMPT_STEPS_MS`."""
    pool = BlockPool(BLOCKS, BLOCK_SIZE)
    batcher = Batcher(
        pool,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        reuse_prefixes=False,
        admits_in_groups=in_groups,
    )
    add_rows(batcher, rows)
    num_mixed, shared_s = 0, 0.0
    while batcher.has_work:
        num_prompt_tokens, step_s = timed_step(batcher)
        shared_s += step_s
        num_mixed += num_prompt_tokens > 0
    return num_mixed, {ms: shared_s + num_mixed * ms / 1000 for ms in PROMPT_STEPS_MS}


def add_rows(batcher: Batcher, rows: Sequence[Lengths]) -> None:
    """Adds the rows of one background job."""
    for number, (num_in, num_out) in enumerate(rows):
        sampling = SamplingParams(max_tokens=num_out)
        request = Request(str(number), [1] * num_in, sampling, priority="background", group="job")
        batcher.add(
            EngineSequence(request, arrival=number, num_tokens_max=num_in + num_out, block_size=BLOCK_SIZE)
        )


def timed_step(batcher: Batcher) -> tuple[int, float]:
    """Tokens of prompts in the next step, and its seconds without m."""
    chunks = batcher.plan()
    num_prompt_tokens = sum(chunk.num_tokens for chunk in chunks if chunk.num_tokens > 1)
    num_context = sum(chunk.sequence.num_tokens for chunk in chunks if chunk.num_tokens == 1)
    for chunk in chunks:
        sequence, start = chunk.sequence, chunk.sequence.num_computed_tokens
        batcher.advance(chunk)
        batcher.publish(chunk, start)
        if sequence.num_uncomputed_tokens == 0:
            sequence.append(1)
            if sequence.num_tokens >= sequence.num_tokens_max:
                batcher.remove(sequence)
    return num_prompt_tokens, STEP_S + CONTEXT_TOKEN_S * num_context + PROMPT_TOKEN_S * num_prompt_tokens


def table_row(name: str, rows: Sequence[Lengths]) -> dict[str, Cell]:
    """How much longer the rows take one by one than in groups, for each m."""
    (num_alone, alone), (num_grouped, grouped) = (
        seconds_by_cost(rows, in_groups=is_on) for is_on in (False, True)
    )
    row: dict[str, Cell] = {"rows": name, "steps with prompts": num_alone, "in groups": num_grouped}
    return row | {f"m = {ms:g} ms": f"{alone[ms] / grouped[ms] - 1:+.1%}" for ms in PROMPT_STEPS_MS}


def main() -> None:
    mixed = [(len(prompt), num_out) for prompt, num_out in mixed_items(2, 1024, 512)]
    draw = random.Random(6)
    uneven = [(draw.randint(100, 300), draw.randint(16, 240)) for _ in range(4_000)]
    longest_first = sorted(mixed, key=lambda lengths: -lengths[1])
    workloads = {
        "1,024 of 32-512 in, 64-512 out": mixed,
        "the same, longest answers first": longest_first,
        "4,000 of 100-300 in, 16-240 out": uneven,
    }
    notes = ["How much longer rows take when they are admitted one by one."]
    report("admission", [table_row(name, rows) for name, rows in workloads.items()], notes)


if __name__ == "__main__":
    main()
