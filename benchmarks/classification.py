"""Classification by our bare encoder engine and by the pipeline of transformers.

Texts have lognormal lengths, 8 to 512 tokens. Both have the same checkpoint, dtype, threads and texts, and
tokenize them themselves. The pipeline pads batches in order of arrival, and runs at each of several batch
sizes; ours runs before and after each, in the same process, and a ratio is to those two.

    python -m benchmarks.classification --rows 600 --shape minilm
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.classifiers import SHAPES, ensure_classifier
from benchmarks.embeddings import make_texts
from benchmarks.measure import cpu_times
from benchmarks.report import Cell, others, report
from benchmarks.runners.embedding import MAX_LENGTH

NUM_LABELS: Final = 5
BATCH_SIZES: Final = (1, 4, 8, 16, 32)
WARM_UP: Final = 16
DIFFERENCE_MAX: Final = {"float32": 1e-3, "bfloat16": 5e-2}
"""Of a probability from ours; beyond it, the other computes something else."""

Scores = NDArray[np.float64]
Classify = Callable[[Sequence[str]], Scores]
"""Probabilities, `[texts, labels]`."""


class DifferentScoresError(Exception):
    """What two engines compute is not the same."""


def ours(path: Path, dtype: str) -> Classify:
    from workers.engine.encoders.classifier import ClassifierModel
    from workers.engine.encoders.engine import EncoderEngine
    from workers.engine.encoders.labels import activated
    from workers.engine.encoders.pairs import PairText
    from workers.engine.encoders.request import EncodeRequest

    model = ClassifierModel.load(path, dtype, "cpu", max_length=MAX_LENGTH)  # type: ignore[arg-type]
    engine = EncoderEngine(model)

    def classify(texts: Sequence[str]) -> Scores:
        for number, tokens in enumerate(model.tokenize_all([PairText(text) for text in texts])):
            engine.add(EncodeRequest(str(number), [tokens], "background"))
        found = np.empty((len(texts), model.num_labels))
        while engine.has_work:
            for output in engine.step():
                found[int(output.id)] = activated(output.embeddings[0], model.labels.activation)
        return found

    return classify


def pipeline(path: Path, dtype: str, batch_size: int) -> Classify:
    import transformers

    run: Any = transformers.pipeline(
        "text-classification",
        model=str(path),
        dtype=getattr(torch, dtype),
        batch_size=batch_size,
        device="cpu",
    )
    run.model.eval()
    places = run.model.config.label2id

    def classify(texts: Sequence[str]) -> Scores:
        found = np.empty((len(texts), len(places)))
        for row, labels in zip(found, run(list(texts), top_k=None), strict=True):
            for each in labels:
                row[places[each["label"]]] = each["score"]
        return found

    return classify


def timed(classify: Classify, texts: Sequence[str]) -> tuple[float, Scores]:
    began_s = time.perf_counter()
    scores = classify(texts)
    return time.perf_counter() - began_s, scores


def compared(
    batch_size: int, before_s: float, theirs_s: float, after_s: float, difference: float, num_rows: int
) -> dict[str, Cell]:
    both_s = mean((before_s, after_s))
    return {
        "peer": f"pipeline, batches of {batch_size}",
        "rows/s": num_rows / theirs_s,
        "ours, rows/s": num_rows / both_s,
        "ours / it": round(theirs_s / both_s, 3),
        "difference": f"{difference:.1e}",
    }


def best(rows: Sequence[dict[str, Cell]]) -> dict[str, Cell]:
    """The peer at its fastest beside ours: where the ratio is least."""
    return min(rows, key=lambda row: float(row["ours / it"] or 0))


def table(path: Path, dtype: str, texts: Sequence[str]) -> list[dict[str, Cell]]:
    """Raises DifferentScoresError."""
    classify = ours(path, dtype)
    classify(texts[-WARM_UP:])
    rows = []
    for size in BATCH_SIZES:
        peer = pipeline(path, dtype, size)
        peer(texts[-WARM_UP:])
        began = cpu_times(os.getpid())
        before_s, scores = timed(classify, texts)
        theirs_s, expected = timed(peer, texts)
        after_s, _ = timed(classify, texts)
        difference = float(np.abs(scores - expected).max())
        if difference > DIFFERENCE_MAX[dtype]:
            raise DifferentScoresError(f"its probabilities differ from ours by {difference:.2g}")
        row = compared(size, before_s, theirs_s, after_s, difference, len(texts))
        rows.append(row | {"others' CPU": others(cpu_times(os.getpid()).other_share_since(began))})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--dtype", choices=DIFFERENCE_MAX, default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows = table(ensure_classifier(chosen.shape, NUM_LABELS), chosen.dtype, make_texts(chosen.rows))
    ratio = best(rows)
    notes = [
        f"{chosen.shape}, {chosen.rows} rows, {chosen.dtype}, {chosen.threads} threads",
        f"least ratio: {ratio['ours / it']}, to the {ratio['peer']}",
    ]
    report(f"classification-{chosen.shape}-{chosen.dtype}", rows, notes)


if __name__ == "__main__":
    main()
