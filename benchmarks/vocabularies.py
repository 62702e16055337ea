"""Byte-level tokenizers of any size, to go with random weights: one trained on real text, one made up."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer, models

SPECIAL_TOKENS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
"""By use; their ids are their places here."""
SOURCE_FILES_MAX = 900
"""Enough text for 32,000 merges, in a few seconds."""


def special_token_ids(*uses: str) -> dict[str, int]:
    """As a model's config names them: `bos_token_id` and so on."""
    return {f"{use}_token_id": [*SPECIAL_TOKENS].index(use) for use in uses}


def save_trained_tokenizer(vocab_size: int, directory: Path) -> None:
    """Merges trained on the standard library's own sources; cuts text as real tokenizers do."""
    from tokenizers import models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(source_texts(), trainer)
    special = {f"{use}_token": token for use, token in SPECIAL_TOKENS.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, padding_side="left").save_pretrained(
        directory
    )


def save_made_up_tokenizer(vocab_size: int, directory: Path) -> None:
    """A text for every id, without training: bytes first, then made-up words."""
    from tokenizers import models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"w{n}" for n in range(vocab_size - len(tokens))]
    tokenizer = _byte_level(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)


def _byte_level(model: models.Model) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def source_texts() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*.py") if "site-packages" not in file.parts)
    for file in files[:SOURCE_FILES_MAX]:
        yield file.read_text(encoding="utf-8", errors="ignore")
