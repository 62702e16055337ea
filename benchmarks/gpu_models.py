"""Models to measure a device with, made on it: the shapes of published models, random weights, no files.

Speed does not depend on the values of the weights. They are scaled so that greedy output wanders over the
vocabulary (see `checkpoints.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Shape:
    """A Qwen3's dimensions."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    has_tied_embeddings: bool = False

    @property
    def num_linear_parameters(self) -> int:
        """Of all linears and the head; the embedding table is only looked up."""
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = self.hidden_size * (2 * width + 2 * kv_width + 3 * self.intermediate_size)
        return self.num_layers * layer + self.num_head_parameters

    @property
    def num_head_parameters(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def kv_elements_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


SHAPES = {
    "0.6b": Shape(151_936, 1024, 28, 16, 8, 128, 3072, has_tied_embeddings=True),
    "8b": Shape(151_936, 4096, 36, 32, 8, 128, 12_288),
    "tiny": Shape(512, 64, 2, 4, 2, 32, 128),
}
"""As Qwen3-0.6B and Qwen3-8B publish them; tiny is for trying the script."""


def make_model(shape: Shape, dtype: torch.dtype, device: torch.device, context_length: int) -> Any:
    """A transformers model on `device`, with eager attention, in eval mode."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        tie_word_embeddings=shape.has_tied_embeddings,
        max_position_embeddings=context_length,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:  # weights come into being where they stay
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                embeds = "embed" in name and not shape.has_tied_embeddings
                parameter.normal_(0, 1 if embeds else 1.5 / parameter.shape[1] ** 0.5)
    return model.eval()


def save_tokenizer(vocab_size: int, directory: Path) -> None:
    """A tokenizer with a text for every id: bytes first, then made-up words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"w{n}" for n in range(vocab_size - len(tokens))]
    backend = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(directory)
