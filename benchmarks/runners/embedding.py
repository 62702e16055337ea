"""Texts to vectors by one engine, as a process of its own in that engine's environment.

Reads texts and writes speed and the first vectors. Every engine tokenizes by itself, within the time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import cpu_times

MAX_LENGTH = 512
VECTORS_KEPT = 16
WARM_UP = 64

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


@dataclass
class EmbeddingRun:
    seconds: float
    other_cpu_share: float
    first_vectors: list[list[float]]
    counts: dict[str, int] = field(default_factory=dict)
    """What the engine counted in this run, where it does: passes, tokens, padding."""

    @classmethod
    def read(cls, path: Path) -> EmbeddingRun:
        return cls(**json.loads(path.read_text()))


@dataclass
class Loaded:
    embed: Embed
    counts: Callable[[], dict[str, int]] = dict


def nightshift(chosen: argparse.Namespace) -> Loaded:
    from workers.engine.execution.openmp import limit_spinning

    limit_spinning(os.environ)  # as a worker does
    import torch

    from workers.engine.encoders.engine import EncoderEngine
    from workers.engine.encoders.model import EncoderModel
    from workers.engine.encoders.request import EncodeRequest

    torch.set_num_threads(chosen.threads)
    model = EncoderModel.load(chosen.model, chosen.dtype, "cpu", max_length=MAX_LENGTH)
    engine = EncoderEngine(model)

    def embed(texts: Sequence[str]) -> list[Any]:
        for number, token_ids in enumerate(model.tokenize_all(texts)):
            engine.add(EncodeRequest(str(number), [token_ids], "background"))
        vectors: list[Any] = [None] * len(texts)
        while engine.has_work:
            for output in engine.step():
                vectors[int(output.id)] = output.embeddings[0]
        return vectors

    def counts() -> dict[str, int]:
        return {name: count for name, count in asdict(engine.stats()).items() if isinstance(count, int)}

    return Loaded(embed, counts)


def sentence_transformers(chosen: argparse.Namespace) -> Loaded:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(chosen.threads)
    model = SentenceTransformer(
        chosen.model, device="cpu", model_kwargs={"dtype": getattr(torch, chosen.dtype)}
    )
    model.max_seq_length = MAX_LENGTH

    def embed(texts: Sequence[str]) -> Any:
        return model.encode(
            list(texts),
            batch_size=chosen.batch_size,
            show_progress_bar=False,
            normalize_embeddings=True,
            convert_to_numpy=True,
        )

    return Loaded(embed)


def openvino(chosen: argparse.Namespace) -> Loaded:
    """Of batches of like length, which it does not form itself: it pads all that it is given."""
    import openvino_genai

    pipeline_type = openvino_genai.TextEmbeddingPipeline
    config = pipeline_type.Config()
    config.max_length, config.normalize = MAX_LENGTH, True
    config.pooling_type = pipeline_type.PoolingType.MEAN
    hint = {"float32": "f32", "bfloat16": "bf16"}[chosen.dtype]
    pipeline = pipeline_type(
        chosen.model, "CPU", config, INFERENCE_PRECISION_HINT=hint, INFERENCE_NUM_THREADS=chosen.threads
    )

    def embed(texts: Sequence[str]) -> list[Any]:
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors: list[Any] = [None] * len(texts)
        for start in range(0, len(order), chosen.batch_size):
            indices = order[start : start + chosen.batch_size]
            for index, vector in zip(
                indices, pipeline.embed_documents([texts[i] for i in indices]), strict=True
            ):
                vectors[index] = vector
        return vectors

    return Loaded(embed)


def vllm(chosen: argparse.Namespace) -> Loaded:
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_ALLOW_LONG_MAX_MODEL_LEN="1",  # the checkpoint says 256 tokens, and has 512 positions
        DO_NOT_TRACK="1",
    )
    cores = sorted(os.sched_getaffinity(0))[: chosen.threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    import vllm

    llm = vllm.LLM(
        model=chosen.model, runner="pooling", dtype=chosen.dtype, max_model_len=MAX_LENGTH,
        max_num_batched_tokens=chosen.batch_size * MAX_LENGTH,
    )  # fmt: skip

    def embed(texts: Sequence[str]) -> list[Any]:
        return [answer.outputs.embedding for answer in llm.embed(list(texts), use_tqdm=False)]

    return Loaded(embed)


ENGINES: dict[str, Callable[[argparse.Namespace], Loaded]] = {
    "nightshift": nightshift,
    "sentence-transformers": sentence_transformers,
    "openvino": openvino,
    "vllm": vllm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--result", type=Path, required=True)
    chosen = parser.parse_args()
    texts = json.loads(chosen.texts.read_text())
    loaded = ENGINES[chosen.engine](chosen)
    loaded.embed(texts[-WARM_UP:])
    before, cpu = loaded.counts(), cpu_times()
    started = time.perf_counter()
    vectors = loaded.embed(texts)
    seconds = time.perf_counter() - started
    share = cpu_times().other_share_since(cpu)
    counts = {name: count - before[name] for name, count in loaded.counts().items()}
    first = [[float(x) for x in vector] for vector in vectors[:VECTORS_KEPT]]
    chosen.result.write_text(json.dumps(asdict(EmbeddingRun(seconds, share, first, counts))))


if __name__ == "__main__":
    main()
