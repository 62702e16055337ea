"""OpenVINO GenAI: continuous batching on token ids, and its pipelines of embeddings and reranking."""

from __future__ import annotations

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
    by_length,
    in_batches,
)

MAX_NUM_BATCHED_TOKENS = 256
HINTS = {"float32": "f32", "bfloat16": "bf16"}


def decoder(task: Task) -> Loaded:
    """KV is in the precision that is computed in."""
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = KV_CACHE_GIB
    scheduler.max_num_seqs = task.max_num_seqs
    scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
    # It costs a little where nothing is shared, so it is on only where it helps.
    is_shared = task.work["num_shared_prefix_tokens"] > 0
    scheduler.enable_prefix_caching = is_shared or task.work["only_decodes"]
    hint = HINTS[task.dtype]
    drafts = task.work["drafts"]
    properties = {"KV_CACHE_PRECISION": hint, **_properties(task)} | (
        {"prompt_lookup": True} if drafts else {}
    )
    pipeline = openvino_genai.ContinuousBatchingPipeline(task.model, scheduler, "CPU", properties)

    def run(items: Sequence[tuple[Sequence[int], int]]) -> list[Any]:
        prompts, configs = [], []
        for prompt, num_output in items:
            prompts.append(openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)))
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = num_output
            config.ignore_eos = True
            config.do_sample = False
            if drafts:
                config.num_assistant_tokens, config.max_ngram_size = DRAFTED_TOKENS, MATCHED_TOKENS
            configs.append(config)
        return [list(answer.m_generation_ids[0]) for answer in pipeline.generate(prompts, configs)]

    return Loaded(run, openvino_genai.__version__)


def embeddings(task: Task) -> Loaded:
    import openvino_genai

    pipeline_type = openvino_genai.TextEmbeddingPipeline
    config = pipeline_type.Config()
    config.max_length, config.normalize = ENCODER_TOKENS_MAX, True
    config.pooling_type = pipeline_type.PoolingType.MEAN
    pipeline = pipeline_type(task.model, "CPU", config, **_properties(task))

    def run(texts: Sequence[str]) -> list[Any]:
        def embed(indices: list[int]) -> Sequence[Any]:
            return list(pipeline.embed_documents([texts[index] for index in indices]))

        return in_batches(by_length(texts), task.batch_size, embed)

    return Loaded(run, openvino_genai.__version__)


def rerank(task: Task) -> Loaded:
    import openvino_genai

    config = openvino_genai.TextRerankPipeline.Config()
    config.max_length, config.top_n = ENCODER_TOKENS_MAX, task.batch_size
    pipeline = openvino_genai.TextRerankPipeline(task.model, "CPU", config, **_properties(task))

    def scores(query: str, documents: Sequence[str]) -> list[float]:
        def score(indices: list[int]) -> list[float]:
            by_place = dict(pipeline.rerank(query, [documents[index] for index in indices]))
            return [by_place[place] for place in range(len(indices))]

        return in_batches(by_length(documents), task.batch_size, score)

    def run(queries: Sequence[tuple[str, Sequence[str]]]) -> list[Any]:
        return [scores(query, documents) for query, documents in queries]

    return Loaded(run, openvino_genai.__version__)


def _properties(task: Task) -> dict[str, Any]:
    return {"INFERENCE_PRECISION_HINT": HINTS[task.dtype], "INFERENCE_NUM_THREADS": task.threads}


if __name__ == "__main__":
    harness.main({"decoder": decoder, "embeddings": embeddings, "rerank": rerank})
