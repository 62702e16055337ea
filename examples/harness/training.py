"""Tiny models, trained in seconds and kept, so that an example's second run begins at once."""

import hashlib
import inspect
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import BaseImageProcessor, PreTrainedModel, PreTrainedTokenizerFast

WARMUP_SHARE = 0.1
GRADIENT_NORM_MAX = 1.0
REPORTS = 4  # lines a training prints


def kept(cache: Path, name: str, source: ModuleType | str, train: Callable[[Path], None]) -> Path:
    """The checkpoint `name`, trained by `train(directory)` unless it is in `cache` already.

    `source` is what it depends on: once that text or module differs, it is trained anew. The directory ends
    in `name`, which so is the model's id in the API.
    """
    text = source if isinstance(source, str) else inspect.getsource(source)
    folder = cache / hashlib.sha256(text.encode()).hexdigest()[:12]
    directory = folder / name
    if directory.exists():
        print(f"{name}: trained earlier, in {directory}")
        return directory
    unfinished = folder / f"{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    train(unfinished)
    return unfinished.rename(directory)


def fit(
    model: "PreTrainedModel",
    loss_of_step: Callable[[int], "torch.Tensor"],
    *,
    steps: int,
    learning_rate: float,
) -> None:
    """AdamW over `steps` losses, with a warm-up and a cosine decay of the rate, on one thread."""
    import torch

    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def share_of_rate(step: int) -> float:
        if step < WARMUP_SHARE * steps:
            return (step + 1) / (WARMUP_SHARE * steps)
        return 0.5 * (1 + math.cos(math.pi * (step / steps - WARMUP_SHARE) / (1 - WARMUP_SHARE)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_rate)
    model.train()
    print(
        f"training {type(model).__name__}, {model.num_parameters():,} parameters, {steps} steps", flush=True
    )
    started_s = time.monotonic()
    for step in range(steps):
        loss = loss_of_step(step)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, steps // REPORTS) == 0:
            print(
                f"  step {step + 1}: loss {loss.item():.3f} after {time.monotonic() - started_s:.1f} s",
                flush=True,
            )
    model.eval()


def save(directory: Path, *parts: "PreTrainedModel | PreTrainedTokenizerFast | BaseImageProcessor") -> None:
    """A checkpoint as transformers writes it, the weights as safetensors."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    for part in parts:
        part.save_pretrained(directory)


def word_tokenizer(words: list[str], positions: int) -> "PreTrainedTokenizerFast":
    """One token a word between spaces, BERT's special tokens, and the token types of pairs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    ids = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=positions,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
