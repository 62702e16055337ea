"""Measures vLLM's offline `LLM` as `benchmarks/gpu.py` measures our engine, in vLLM's own environment.

    python -m benchmarks.device.vllm_peer 0.6b        # from the root of the source tree

Random weights of the same shapes, the same requests, 256 sequences, 8,192 tokens a step, 160,000 tokens of
KV, bfloat16, greedy, no prefix cache, and vLLM's own defaults for the rest. Decoding is the difference of two
runs that differ in the length of their answers.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fixtures.models import QWENS, Shape
from benchmarks.fixtures.workloads import mixed_items

CONTEXT_LENGTH = 4096
NUM_SEQS, NUM_BATCHED_TOKENS, KV_TOKENS = 256, 8192, 160_000
PROMPT_LENGTH = 512
DECODES = ((1, 16, 272), (32, 16, 144), (256, 16, 80))
"""Sequences, and the tokens of their answers in the shorter and in the longer run."""

Item = tuple[list[int], int]


def make_llm(shape: Shape, directory: Path) -> Any:
    """vLLM over random weights."""
    from transformers import AutoConfig
    from vllm import LLM

    config = AutoConfig.for_model(
        "qwen3",
        architectures=["Qwen3ForCausalLM"],
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.has_tied_embeddings,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=None,
        eos_token_id=None,
        dtype="bfloat16",
    )
    config.save_pretrained(directory)
    return LLM(
        model=str(directory),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=CONTEXT_LENGTH,
        max_num_seqs=NUM_SEQS,
        max_num_batched_tokens=NUM_BATCHED_TOKENS,
        kv_cache_memory_bytes=2 * shape.kv_elements_per_token * KV_TOKENS,
        enable_prefix_caching=False,
    )


def run(llm: Any, items: Sequence[Item]) -> float:
    """Seconds for all items. Raises AssertionError if one has another number of tokens."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": prompt} for prompt, _ in items]
    params = [
        SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        for _, count in items
    ]
    began_s = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began_s
    counts = [len(answer.outputs[0].token_ids) for answer in answers]
    assert counts == [count for _, count in items], "other numbers of tokens came out"
    return seconds


def measure(llm: Any, shape: Shape) -> dict[str, float]:
    """Tokens per second by case."""

    def items(count: int, length: int, tokens: int) -> list[Item]:
        draw = random.Random(count)
        return [([draw.randrange(shape.vocab_size) for _ in range(length)], tokens) for _ in range(count)]

    run(llm, items(NUM_SEQS, PROMPT_LENGTH, 8))  # to warm up
    measured = {}
    for count, short, long in DECODES:
        seconds = run(llm, items(count, PROMPT_LENGTH, long)) - run(llm, items(count, PROMPT_LENGTH, short))
        measured[f"decoding, {count} sequences"] = count * (long - short) / seconds
    prompts = items(NUM_SEQS, PROMPT_LENGTH, 1)
    measured[f"prompts, {NUM_SEQS} x {PROMPT_LENGTH}"] = NUM_SEQS * PROMPT_LENGTH / run(llm, prompts)
    mixed, even = mixed_items(shape.vocab_size, 1024, 512), items(NUM_SEQS, 256, 128)
    for number in (1, 2):
        measured[f"1,024 mixed requests, run {number}"] = sum(count for _, count in mixed) / run(llm, mixed)
        measured[f"256 of 256 + 128, run {number}"] = NUM_SEQS * 128 / run(llm, even)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=QWENS)
    shape = QWENS[parser.parse_args().model]
    with tempfile.TemporaryDirectory() as directory:
        for case, tokens_per_s in measure(make_llm(shape, Path(directory)), shape).items():
            print(f"{case}: {tokens_per_s:,.0f} tokens/s")


if __name__ == "__main__":
    main()
