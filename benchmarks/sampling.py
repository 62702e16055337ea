"""What choosing the tokens of a step costs on this CPU, per way of sampling.

CPU time of the calling thread, not time on the clock, so that other processes change little; the least of
several steps. Logits are normal numbers times 3: 0.9 of the mass lies in some hundreds of tokens, except for
`top_p flat`, where it takes most of the vocabulary. `penalties` has 512 tokens of prompt and grows.

    python -m benchmarks.sampling                                  # --rows, --vocabularies, --kinds, --steps
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence as Seq
from typing import Any

import torch

from workers.engine import Request, SamplingParams
from workers.engine.batching.sequence import Sequence
from workers.engine.sampling.sampler import Sampler

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k 50": {"temperature": 0.8, "top_k": 50},
    "top_k 20, top_p": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "top_p": {"temperature": 0.5, "top_p": 0.9},
    "top_p flat": {"temperature": 2.0, "top_p": 0.9},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
}
PROMPT_TOKENS = 512


def milliseconds(kind: str, rows: int, vocab_size: int, steps: int) -> float:
    """CPU time of the fastest of `steps` steps that sample `rows` rows of `vocab_size` logits."""
    generator = torch.Generator().manual_seed(rows + vocab_size)
    logits = torch.randn(rows, vocab_size, generator=generator) * 3
    prompts = torch.randint(vocab_size, (rows, PROMPT_TOKENS), generator=generator).tolist()
    sequences = [_sequence(n, prompt, KINDS[kind]) for n, prompt in enumerate(prompts)]
    sampler, times = Sampler([]), []
    for _ in range(steps):
        work = logits.clone()  # they may be overwritten
        began = time.thread_time()
        tokens = sampler.sample(work, sequences).tokens
        times.append(time.thread_time() - began)
        for sequence, token in zip(sequences, tokens, strict=True):
            assert token is not None
            sequence.append(token)
    return min(times) * 1000


def _sequence(number: int, prompt: Seq[int], params: dict[str, Any]) -> Sequence:
    request = Request(str(number), prompt, SamplingParams(seed=number, **params))
    return Sequence(request, arrival=number, num_tokens_max=PROMPT_TOKENS + 10_000)


def main(arguments: Seq[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description="Sampling on this CPU")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_768, 131_072])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--steps", type=int, default=5)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    columns = [(rows, vocab_size) for vocab_size in chosen.vocabularies for rows in chosen.rows]
    print("| CPU ms per step |", " | ".join(f"{rows} × {vocab_size}" for rows, vocab_size in columns), "|")
    print("|---|" + "---|" * len(columns))
    for kind in chosen.kinds:
        figures = (f"{milliseconds(kind, rows, size, chosen.steps):.2f}" for rows, size in columns)
        print(f"| {kind} |", " | ".join(figures), "|", flush=True)


if __name__ == "__main__":
    main()
