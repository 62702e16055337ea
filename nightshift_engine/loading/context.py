"""Tokens that a model's positions were made for, from its configuration.

A scaled rotary embedding extends the context that a model was first trained on. Whether a configuration
states the extended or the original length differs by kind of scaling; the rules are those of vLLM
(`_get_and_verify_max_len`), over the frequencies that `transformers.modeling_rope_utils` computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ..errors import InvalidConfig, UnsupportedModel
from ..text.tokenizer import Tokenizer

CONTEXT_LENGTH_MIN = 2


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Tokens a model can place; None where its configuration does not say."""

    default: int | None
    longest: int | None
    """Tokens that can be asked for: more than `default` where serving so many changes shorter sequences
    too."""


def context_length(hf_config: Any, tokenizer: Tokenizer, max_model_len: int | None) -> int:
    """Tokens that prompt and output may have together. Raises `InvalidConfig` if the model has fewer."""
    limits = context_limits(hf_config.get_text_config())
    own = limits.default or tokenizer.context_length
    longest = limits.longest or own
    if own is None and max_model_len is None:
        raise InvalidConfig("neither model nor tokenizer states a context length; set max_model_len")
    if longest is not None and max_model_len is not None and max_model_len > longest:
        raise InvalidConfig(f"max_model_len {max_model_len} exceeds the model's context of {longest} tokens")
    length = max_model_len or own or 0
    if length < CONTEXT_LENGTH_MIN:
        raise InvalidConfig(f"a context of {length} tokens has no room for a prompt and an answer")
    return length


def context_limits(text_config: Any) -> ContextLimits:
    """Tokens that a text model's positions allow, by `max_position_embeddings` and `rope_parameters`.

    - yarn: the original length times the factor.
    - linear: `max_position_embeddings` times the factor, but not where each kind of layer has its own rotary
      embedding (gemma3): there the configuration gives the extended length.
    - longrope: the original length; up to `max_position_embeddings` if asked for, see `pin_longrope`.
    - others: `max_position_embeddings`. Beyond it, dynamic ones would change frequencies of stored keys.
    """
    declared: int | None = getattr(text_config, "max_position_embeddings", None)
    ropes, is_per_layer_type = _rope_parameters(text_config)
    if longrope := next((rope for rope in ropes if rope.get("rope_type") == "longrope"), None):
        original = longrope.get("original_max_position_embeddings")
        return ContextLimits(min(declared or original, original) if original else declared, declared)
    extended = [
        length
        for rope in ropes
        if (length := _extended_length(rope, declared, is_per_layer_type)) is not None
    ]
    length = min(extended) if extended else declared
    return ContextLimits(length, length)


def pin_longrope(model: Any, max_model_len: int | None, name: str) -> None:
    """Computes all positions with the long factors if `max_model_len` is beyond the original context.

    transformers takes the short factors until the longest sequence of the batch exceeds the original length,
    so one sequence would change the others. vLLM decides once, by the context it serves, and so do we:
    shorter sequences then differ from those of a server of the original context. Raises `UnsupportedModel`.
    """
    text_config = model.config.get_text_config()
    limits = context_limits(text_config)
    if max_model_len is None or limits.default == limits.longest or max_model_len <= (limits.default or 0):
        return
    assert limits.default is not None
    compute = ROPE_INIT_FUNCTIONS["longrope"]
    rotaries = [module for module in model.modules() if getattr(module, "rope_type", None) == "longrope"]
    for rotary in rotaries:
        frequencies, _ = compute(text_config, model.device, seq_len=limits.default + 1)
        rotary.original_inv_freq = frequencies  # transformers goes back to it for short sequences
        rotary.inv_freq.copy_(frequencies)
    if not rotaries or not all(_is_static(rotary, limits.default + 1) for rotary in rotaries):
        reason = f"its rotary embedding cannot be held constant beyond {limits.default} tokens"
        raise UnsupportedModel(name, f"{reason}; set max_model_len to at most that")


def _is_static(rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], length: int) -> bool:
    """Whether the embedding of early positions is the same alone and beside position `length - 1`."""
    x = torch.zeros(1)
    early, all_of_them = torch.arange(2)[None], torch.arange(length)[None]
    pairs = zip(rotary(x, early), rotary(x, all_of_them), strict=True)
    return all(torch.equal(alone[0, :2], beside[0, :2]) for alone, beside in pairs)


def _extended_length(rope: dict[str, Any], declared: int | None, is_per_layer_type: bool) -> int | None:
    """Tokens that a scaled rotary embedding was made for; None where the configuration states them itself."""
    factor = rope.get("factor") or 1.0
    match rope.get("rope_type"):
        case "yarn":
            original = rope.get("original_max_position_embeddings")
            # Without a factor, transformers takes the ratio of the two lengths for it.
            return int(original * factor) if original and rope.get("factor") else declared
        case "linear" if declared is not None and not is_per_layer_type:
            return int(declared * factor)
    return None


def _rope_parameters(text_config: Any) -> tuple[list[dict[str, Any]], bool]:
    """Rope settings of a model: one dictionary, or one per layer type, and which of the two."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    if "rope_type" in rope:
        return [rope], False
    return [entry for entry in rope.values() if isinstance(entry, dict)], True


def longest_input(model: Any, tokenizer: Tokenizer, declared: int | None, wanted: int | None) -> int:
    """Tokens that were asked for, else the fewest that the checkpoint's files say.

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
