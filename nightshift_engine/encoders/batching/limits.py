"""The longest input of an encoder, as its files and its modules say."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidConfig
from ...loading.context import context_limits
from ...text.tokenizer import Tokenizer


def longest_input(model: Any, tokenizer: Tokenizer, declared: int | None, wanted: int | None) -> int:
    """In tokens: what was asked for, else the least that the checkpoint's files say.

    `declared`: what files beside its configuration say. Raises InvalidConfig.
    """
    num_positions = _num_positions(model)
    if wanted is not None:
        if wanted < 1 or (num_positions is not None and wanted > num_positions):
            raise InvalidConfig(f"max_length must be 1 to {num_positions or 'any'} tokens, got {wanted}")
        return wanted
    limits = [limit for limit in (num_positions, tokenizer.context_length, declared) if limit]
    if not limits:
        raise InvalidConfig("its files declare no longest input; model_max_length of its tokenizer would")
    return min(limits)


def _num_positions(model: Any) -> int | None:
    """Positions the model can tell apart. RoBERTa-like models count them from after the padding id."""
    declared = context_limits(model.config).default
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.weight.shape[0] - module.padding_idx - 1)
    return declared if isinstance(declared, int) and declared > 0 else None
