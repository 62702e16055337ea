"""Queries with their documents to scores by one engine, as a process of its own in that engine's environment.

Reads queries and writes speed and all scores. Every engine tokenizes by itself, within the time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import cpu_times

MAX_LENGTH = 512
WARM_UP = 2

Rank = Callable[[str, Sequence[str]], Sequence[float]]
"""The score of each document for a query."""


@dataclass
class RerankRun:
    seconds: float
    other_cpu_share: float
    scores: list[list[float]]
    """Of each query's documents, in their order."""

    @classmethod
    def read(cls, path: Path) -> RerankRun:
        return cls(**json.loads(path.read_text()))


def nightshift(chosen: argparse.Namespace) -> Rank:
    from workers.engine.execution.openmp import limit_spinning

    limit_spinning(os.environ)  # as a worker does
    import torch

    from workers.engine.encoders.classifier import ClassifierModel
    from workers.engine.encoders.engine import EncoderEngine
    from workers.engine.encoders.labels import activated
    from workers.engine.encoders.pairs import PairText
    from workers.engine.encoders.request import EncodeRequest

    torch.set_num_threads(chosen.threads)
    model = ClassifierModel.load(chosen.model, chosen.dtype, "cpu", max_length=MAX_LENGTH)
    engine = EncoderEngine(model)

    def rank(query: str, documents: Sequence[str]) -> list[float]:
        pairs = [PairText(query, document, MAX_LENGTH) for document in documents]
        engine.add(EncodeRequest("query", model.tokenize_all(pairs), "background"))
        outputs = []
        while engine.has_work:
            outputs += engine.step()
        [output] = outputs
        return [float(activated(logits, model.labels.ranking_activation)[0]) for logits in output.embeddings]

    return rank


def openvino(chosen: argparse.Namespace) -> Rank:
    """Of batches of like length, which it does not form itself: it pads all that it is given."""
    import openvino_genai

    config = openvino_genai.TextRerankPipeline.Config()
    config.max_length, config.top_n = MAX_LENGTH, chosen.batch_size
    hint = {"float32": "f32", "bfloat16": "bf16"}[chosen.dtype]
    pipeline = openvino_genai.TextRerankPipeline(
        chosen.model, "CPU", config, INFERENCE_PRECISION_HINT=hint, INFERENCE_NUM_THREADS=chosen.threads
    )

    def rank(query: str, documents: Sequence[str]) -> list[float]:
        order = sorted(range(len(documents)), key=lambda index: len(documents[index]))
        scores = [0.0] * len(documents)
        for start in range(0, len(order), chosen.batch_size):
            indices = order[start : start + chosen.batch_size]
            for place, score in pipeline.rerank(query, [documents[index] for index in indices]):
                scores[indices[place]] = score
        return scores

    return rank


ENGINES: dict[str, Callable[[argparse.Namespace], Rank]] = {"nightshift": nightshift, "openvino": openvino}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--result", type=Path, required=True)
    chosen = parser.parse_args()
    queries = [(each["query"], each["documents"]) for each in json.loads(chosen.queries.read_text())]
    rank = ENGINES[chosen.engine](chosen)
    for query, documents in queries[-WARM_UP:]:
        rank(query, documents)
    cpu = cpu_times()
    started = time.perf_counter()
    scores = [list(rank(query, documents)) for query, documents in queries]
    seconds = time.perf_counter() - started
    share = cpu_times().other_share_since(cpu)
    chosen.result.write_text(json.dumps(asdict(RerankRun(seconds, share, scores))))


if __name__ == "__main__":
    main()
