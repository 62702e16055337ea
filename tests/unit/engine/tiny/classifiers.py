"""Tiny classifiers with random weights, saved as the real ones are, and what they are held against."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from nightshift_engine.encoders.scoring.pairs import PairText
from tests.unit.engine.tiny.encoders import SIZES, WORDS, save_tokenizer

_TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3}

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES | {"max_position_embeddings": 66, "type_vocab_size": 2},
    "xlm-roberta": SIZES | {"max_position_embeddings": 66, "type_vocab_size": 2},
    "camembert": SIZES | {"max_position_embeddings": 66, "type_vocab_size": 2},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "deberta": SIZES | {"type_vocab_size": 2, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": SIZES
    | {
        "type_vocab_size": 2,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
    },
    "modernbert": SIZES | {"global_attn_every_n_layers": 2, "local_attention": 8},
    "electra": SIZES | {"embedding_size": 16},
    "albert": SIZES | {"embedding_size": 16},
    "mpnet": SIZES | {"max_position_embeddings": 66},
}
"""Encoders with a head over labels, and their sizes."""

LIKE_BERT = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert")
"""Encoders whose layers are packed."""

DECODERS = ("llama", "qwen3", "mistral", "gemma2")
"""Decoders with such a head."""


def save_classifier(directory: Path, family: str = "bert", *, seed: int = 0, **overrides: Any) -> Path:
    """A random classifier of 64 positions with a tokenizer of 60 words that marks the second of two texts.

    Its weights are larger than usual, so that texts have visibly different scores.
    """
    torch.manual_seed(seed)
    sizes = FAMILIES.get(family, SIZES | {"num_key_value_heads": 2, "head_dim": 8})
    config = AutoConfig.for_model(family, **({"max_position_embeddings": 64} | _TOKENS | sizes | overrides))
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(directory)
    save_tokenizer(directory, has_types=family not in ("distilbert", "modernbert", *DECODERS))
    return directory


def change_config(directory: Path, **fields: Any) -> Path:
    """None takes a field away."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return directory


def reference_logits(directory: Path, texts: Sequence[PairText]) -> NDArray[np.float32]:
    """float32 [texts, labels], by transformers alone: its tokenizer and model, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype="float32").eval()
    with torch.inference_mode():
        logits = [model(**tokenizer(text.text, text.pair, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(logits).numpy()


def some_texts(*lengths: int) -> list[PairText]:
    """Texts and pairs of so many words; pairs at every other place."""
    texts = []
    for place, length in enumerate(lengths):
        words = [WORDS[(7 * place + 3 * position) % len(WORDS)] for position in range(length)]
        half = len(words) // 2
        is_pair = place % 2 == 1
        texts.append(
            PairText(" ".join(words[:half]), " ".join(words[half:])) if is_pair else PairText(" ".join(words))
        )
    return texts
