"""Memory that a model will take of its device, from its files alone, before anything of it is loaded."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from ..checkpoint.files import local_directory
from ..checkpoint.narrow.tensors import read_narrow
from ..checkpoint.stored_tensors import num_stored_elements
from ..core.config import EngineConfig
from ..execution.kv_memory import KvShape, largest_step_bytes
from . import weights
from .adapters import adapter_bytes
from .draft import draft_config
from .narrow import num_kept_bytes
from .ranks.processes import rank_device

_INPUTS_PER_PASS = {"cpu": 1_024, "cuda": 16_384}
"""Tokens, as in `encoders/model.py`. What an image needs is of the same order."""
_LEAST_TOKENS = 2_048
"""Tokens of KV that a model must have room for: the prompt and answer of a short conversation."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. `weights` follows from the files; `step` and `kv_per_token` are estimates from the
    configuration, for models of the usual build.
    """

    weights: int
    step: int
    """Bytes that the largest step needs beside weights and KV."""
    kv_per_token: int = 0
    """0: it keeps no KV."""
    least_tokens: int = 0
    """Tokens of KV without which it is not worth loading."""
    has_fixed_kv: bool = False
    """`least_tokens` is what it will have, as its configuration says."""

    @property
    def least_kv(self) -> int:
        return self.kv_per_token * self.least_tokens

    @property
    def least(self) -> int:
        """All in all, with the least KV."""
        return self.weights + self.step + self.least_kv


def generator_footprint(config: EngineConfig, directory: Path) -> Footprint:
    """Footprint of a decoder or an encoder-decoder, on each of its devices. Raises `ModelLoadFailed` or
    `InvalidConfig`.
    """
    device = rank_device(config, 0)
    hf_config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    dtype = weights.decoder_dtype(config, hf_config, device)
    kv_dtype = weights.resolve_kv_dtype(config.kv_cache_dtype, dtype)
    text_config = hf_config.get_text_config()
    size = config.tensor_parallel_size
    per_token = -(-_kv_bytes_per_token(text_config, kv_dtype) // size)
    fixed_tokens = config.num_kv_blocks and config.num_kv_blocks * config.block_size
    least_tokens = min(config.max_model_len or _LEAST_TOKENS, _LEAST_TOKENS)
    footprint = Footprint(
        _weight_bytes(config, directory, hf_config, dtype, device) + adapter_bytes(config, dtype),
        largest_step_bytes(config, text_config, dtype, device),
        per_token,
        fixed_tokens or least_tokens,
        has_fixed_kv=fixed_tokens is not None,
    )
    if config.draft_model is None:
        return footprint
    draft = generator_footprint(draft_config(config), local_directory(config.draft_model))
    return replace(
        footprint,
        weights=footprint.weights + draft.weights,
        step=footprint.step + draft.step,
        kv_per_token=footprint.kv_per_token + draft.kv_per_token,
    )


def _weight_bytes(
    config: EngineConfig, directory: Path, hf_config: Any, dtype: torch.dtype, device: torch.device
) -> int:
    narrow = read_narrow(directory, config.model)
    if narrow is None:
        stored, size = num_stored_elements(directory, config.model), config.tensor_parallel_size
        return _elements_held(stored, hf_config.get_text_config(), size) * dtype.itemsize
    others = num_stored_elements(directory, config.model, without=narrow.parts)
    return others * dtype.itemsize + num_kept_bytes(narrow, hf_config, dtype, device)


def _elements_held(stored: int, text_config: Any, size: int) -> int:
    """Numbers that each of `size` devices has: all have the whole embedding."""
    embedding = text_config.vocab_size * (_widest(text_config, "hidden_size", "d_model") or 0)
    return stored if size == 1 else -(-max(0, stored - embedding) // size) + embedding


def encoder_footprint(directory: Path, dtype_name: str, device_name: str) -> Footprint:
    """Footprint of a model whose inputs each take one pass. Raises `ModelLoadFailed` or `InvalidConfig`."""
    device = weights.resolve_device(device_name)
    hf_config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    dtype = weights.resolve_dtype(dtype_name, weights.checkpoint_dtype(hf_config), device)
    hidden = _widest(hf_config, "hidden_size", "hidden_sizes", "embed_dim") or 1_024
    inner = _widest(hf_config, "intermediate_size") or 4 * hidden
    step = _INPUTS_PER_PASS.get(device.type, 1_024) * (6 * hidden + 3 * inner) * dtype.itemsize
    return Footprint(num_stored_elements(directory, str(directory)) * dtype.itemsize, step)


def _kv_bytes_per_token(text_config: Any, dtype: torch.dtype) -> int:
    layers = _widest(text_config, "num_decoder_layers", "decoder_layers", "num_hidden_layers", "n_layer") or 1
    if rank := _widest(text_config, "kv_lora_rank"):  # kept as `attention/latent.py` does
        rope_dim = _widest(text_config, "qk_rope_head_dim") or 0
        return layers * KvShape(1, rank + rope_dim, rank).bytes_per_token(dtype)
    heads = _widest(text_config, "num_attention_heads", "decoder_attention_heads", "n_head", "num_heads") or 1
    hidden = _widest(text_config, "hidden_size", "d_model", "n_embd") or 1
    head_dim = _widest(text_config, "head_dim", "d_kv") or hidden // heads
    num_kv_heads = _widest(text_config, "num_key_value_heads") or heads
    return layers * KvShape(num_kv_heads, head_dim, head_dim).bytes_per_token(dtype)


def _widest(config: Any, *names: str) -> int | None:
    """The first of these fields that there is; of one that differs by layer, the largest."""
    for name in names:
        value = getattr(config, name, None)
        values = value if isinstance(value, list | tuple) else [value]
        if limits := [value for value in values if isinstance(value, int) and value > 0]:
            return math.ceil(max(limits))
    return None
