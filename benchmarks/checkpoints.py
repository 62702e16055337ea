"""Checkpoints to measure with: random weights in the shapes of `models.py`, in two dtypes, and a tokenizer.

python -m benchmarks.checkpoints small medium        # into .bench/models
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import BENCH_DIRECTORY
from benchmarks.models import ENCODERS, SHAPES, make_encoder, make_model, make_translator
from benchmarks.vocabularies import save_trained_tokenizer, special_token_ids

MODELS_DIRECTORY = BENCH_DIRECTORY / "models"
DTYPES = ("float32", "bfloat16")
CONTEXT_LENGTH = 2048
ENCODER_CONTEXT_LENGTH = 512
TOKENIZER_SIZE = 32_000
"""Of the translator, whose vocabulary is larger: more merges take a minute."""


def ensure(name: str, dtype: str, directory: Path = MODELS_DIRECTORY) -> Path:
    """The checkpoint's directory `<name>-<dtype>`, made first if it is not there."""
    path = directory / f"{name}-{dtype}"
    if not (path / "config.json").exists():
        make(name, dtype, path)
    return path


def make(name: str, dtype: str, path: Path) -> None:
    """Write a checkpoint. Both dtypes of a name have the same values, up to rounding."""
    import torch

    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    shape = SHAPES[name]
    eps = {} if shape.family == "gpt2" else {"rms_norm_eps": 1e-5}
    tokens = special_token_ids("bos", "eos", "pad")
    model = make_model(shape, torch.float32, torch.device("cpu"), CONTEXT_LENGTH, **tokens, **eps)
    _save(model.to(getattr(torch, dtype)), shape.vocab_size, path)


def ensure_encoder(name: str, directory: Path = MODELS_DIRECTORY) -> Path:
    """The float32 checkpoint's directory of an encoder, made first if it is not there."""
    path = directory / name
    if not (path / "config.json").exists():
        shape = ENCODERS[name]
        model = make_encoder(shape, ENCODER_CONTEXT_LENGTH, **special_token_ids("pad"))
        _save(model, shape.vocab_size, path)
    return path


def ensure_translator(directory: Path = MODELS_DIRECTORY) -> Path:
    """The float32 checkpoint's directory of a Marian like opus-mt, made first if it is not there."""
    path = directory / "marian"
    if not (path / "config.json").exists():
        _save(make_translator(**special_token_ids("bos", "eos", "pad")), TOKENIZER_SIZE, path)
    return path


def _save(model: Any, vocab_size: int, path: Path) -> None:
    unfinished = path.with_name(path.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    save_trained_tokenizer(vocab_size, unfinished)
    unfinished.rename(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the checkpoints that benchmarks use.")
    # argparse would check a default list against `choices`.
    parser.add_argument("names", nargs="*", choices=[*SHAPES, []], metavar="NAME", help=", ".join(SHAPES))
    for name in parser.parse_args(arguments).names or ("small", "medium"):
        for dtype in DTYPES:
            print(ensure(name, dtype), flush=True)


if __name__ == "__main__":
    main()
