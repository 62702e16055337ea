"""Tiny encoders with random weights, saved as the real ones are, and the reference they are held against."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

TOLERANCE = 1e-5

TEXTS = [
    "cat",
    "kitten",
    "Revenue grew by a third in the last quarter.",
    "  Whitespace,   UPPER CASE and punctuation!? ",
    "Ünïcödé, 漢字 and 🙂 in one line",
    "A worker that can answer would have renewed its lease. " * 8,
    "The quick brown fox jumps over the lazy dog. " * 20,
]

WORDS = [f"w{i}" for i in range(60)]

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def reference(
    directory: Path, inputs: Sequence[Sequence[int]], pool: Callable[[torch.Tensor], torch.Tensor]
) -> NDArray[np.float32]:
    """Vectors by the shortest way that can be read: no batch, so no padding and no mask."""
    model = AutoModel.from_pretrained(directory, dtype="float32").eval()
    with torch.inference_mode():
        hidden = [model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0] for ids in inputs]
    return torch.stack([pool(tokens) for tokens in hidden]).numpy()


def mean_and_normalize(tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(tokens.mean(0), dim=0)


def save_checkpoint(directory: Path, model: PreTrainedModel, positions: int = 64) -> Path:
    """A random model with a tokenizer of 60 words, as it would lie in a directory."""
    model.save_pretrained(directory)
    save_tokenizer(directory, model_max_length=positions)
    return directory


def save_tokenizer(directory: Path, *, has_types: bool = True, has_pairs: bool = True, **more: Any) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if has_pairs:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * has_types
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        model_input_names=names,
        **({"pad_token": "[PAD]", "model_max_length": 64} | more),
    ).save_pretrained(directory)


def tiny_bert(max_position_embeddings: int = 64) -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(vocab_size=64, max_position_embeddings=max_position_embeddings, **SIZES))


def declare_modules(directory: Path, pooling: dict[str, object], *names: str) -> None:
    """Writes the files sentence-transformers would."""
    paths = ["" if name == "Transformer" else f"{index}_{name}" for index, name in enumerate(names)]
    paths = ["1_Pooling" if name == "Pooling" else path for name, path in zip(names, paths, strict=True)]
    modules = [
        {"idx": index, "name": str(index), "type": f"sentence_transformers.models.{name}", "path": path}
        for index, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def random_inputs(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    random = Random(seed)
    return [[random.randrange(4, 64) for _ in range(length)] for length in lengths]


def save_module(directory: Path, config: dict[str, object], **weights: torch.Tensor) -> None:
    """A module's own files; `linear_weight` is written `linear.weight`."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    if weights:
        save_file(
            {name.replace("_", "."): weight for name, weight in weights.items()},
            directory / "model.safetensors",
        )
