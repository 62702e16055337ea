"""Settles, before any rank is started, what all ranks must agree on, and refuses what cannot be split."""

from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig

from ...checkpoint.files import local_directory
from ...checkpoint.kinds import DECODER, require_kind
from ...core.config import EngineConfig
from ...errors import InvalidConfig
from ..weights import decoder_dtype
from .processes import rank_device

_DIVIDED = (
    (("num_attention_heads", "n_head"), "attention heads"),
    (("num_key_value_heads",), "KV heads"),
    (("intermediate_size", "n_inner"), "columns of an MLP"),
    (("vocab_size",), "tokens in the vocabulary"),
)
"""Names in configurations."""


def settle(config: EngineConfig) -> tuple[EngineConfig, torch.device]:
    """The configuration with the dtype in which all ranks compute, which is measured on a CPU, and rank 0's
    device. Raises `InvalidConfig` naming what is in the way, from the model's configuration alone.
    """
    require_kind(config.model, config.revision, DECODER)
    device = rank_device(config, 0)
    directory = local_directory(config.model, config.revision)
    hf_config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    _check_divisible(hf_config.get_text_config(), config)
    dtype = decoder_dtype(config, hf_config, device)
    return replace(config, dtype=str(dtype).removeprefix("torch.")), device


def _check_divisible(text_config: Any, config: EngineConfig) -> None:
    size = config.tensor_parallel_size
    for names, what in _DIVIDED:
        count = next((value for name in names if (value := getattr(text_config, name, None))), None)
        if isinstance(count, int) and count % size:
            raise cannot_be_split(config, f"its {count} {what} cannot be shared by {size} devices")


def cannot_be_split(config: EngineConfig, reason: str) -> InvalidConfig:
    """The refusal of a model."""
    size = config.tensor_parallel_size
    return InvalidConfig(f"tensor_parallel_size {size} cannot be used with {config.model!r}: {reason}")
