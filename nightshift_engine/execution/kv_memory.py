"""The tensors behind the block numbers, and how many blocks an engine can afford.

Layout per layer: `[blocks, kv_heads, block_size, head_dim]`, keys and values apart. In int8 and fp8 each
head's key and value of a token has a scale of its own. Layers whose blocks come and go at other times
(`KvGroups`) are never in the same block, so those in the same place of their groups share memory.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.config import EngineConfig
from ..core.kv_groups import BlockDemand, KvGroups
from ..core.steps import SCORED_TOKENS_MAX
from ..errors import InvalidConfig
from ..kernels.triton.splits import split_bytes_max
from .device.devices import DeviceMemory
from .graphs.sizes import graph_bytes

CACHE_LINE_BYTES = 64

QUANTISED_DTYPES = (torch.int8, torch.float8_e4m3fn)
"""Dtypes of KV memory with a float32 scale per token and head. Their largest number stands for the largest
element of a row."""
SCALE_DTYPE = torch.float32


@dataclass(frozen=True, slots=True)
class KvShape:
    """Key and value heads of one attention layer, as the layer itself presented them in the self-test."""

    num_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of KV memory per token in `dtype`, scales included."""
        scales = 2 * SCALE_DTYPE.itemsize if dtype in QUANTISED_DTYPES else 0
        return self.num_heads * ((self.key_dim + self.value_dim) * dtype.itemsize + scales)


@dataclass(frozen=True, slots=True)
class LayerKv:
    keys: Tensor  # [blocks, kv_heads, block_size, key_dim], or a view of that shape
    values: Tensor  # [blocks, kv_heads, block_size, value_dim]
    key_scales: Tensor | None = (
        None  # [blocks, kv_heads, block_size], only if quantised: what one unit is worth
    )
    value_scales: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        every = (self.keys, self.values, self.key_scales, self.value_scales)
        return [tensor for tensor in every if tensor is not None]


class KvMemory:
    """KV memory of all layers: block 7 is block 7 in every layer of its group."""

    def __init__(
        self,
        shapes: Mapping[int, KvShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        transposed_keys: bool = False,
        groups: KvGroups | None = None,
    ) -> None:
        """Allocates memory by groups of layers. Without `groups`, all layers are one."""
        self.shapes = dict(shapes)
        self.groups = groups or KvGroups.single(shapes)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.transposed_keys = transposed_keys
        places = [self._allocate(self.shapes[layer], dtype, device) for layer in _widest(self.groups)]
        self.layers = {layer: places[place] for layer, place in self.groups.place_of.items()}

    def clear(self, blocks: list[int]) -> None:
        """Zeros blocks that hold values no arithmetic survives (NaN, infinity)."""
        for layer in self.layers.values():
            for tensor in layer.tensors:
                as_indexable(tensor)[blocks] = 0  # no bit is set in a zero of any dtype

    def _allocate(self, shape: KvShape, dtype: torch.dtype, device: torch.device) -> LayerKv:
        size = (self.num_blocks, shape.num_heads, self.block_size)
        keys = self._allocate_keys(shape, dtype, device)
        values = _zeros((*size, shape.value_dim), dtype, device)
        if dtype not in QUANTISED_DTYPES:
            return LayerKv(keys, values)
        return LayerKv(keys, values, _zeros(size, SCALE_DTYPE, device), _zeros(size, SCALE_DTYPE, device))

    def _allocate_keys(self, shape: KvShape, dtype: torch.dtype, device: torch.device) -> Tensor:
        if not self.transposed_keys:
            return _zeros((self.num_blocks, shape.num_heads, self.block_size, shape.key_dim), dtype, device)
        size = (self.num_blocks, shape.num_heads, shape.key_dim, self.block_size)
        return _zeros(size, dtype, device).transpose(2, 3)


def as_indexable(memory: Tensor) -> Tensor:
    """The same memory; fp8 as int8, because older releases of torch cannot index fp8."""
    return memory.view(torch.int8) if memory.dtype == torch.float8_e4m3fn else memory


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not empty: the tail of a block is masked, but a NaN there would survive a weight of zero."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # numpy gets zero pages from the kernel, which take no memory until written; torch would write them all.
    num_bytes = math.prod(size) * dtype.itemsize
    raw = np.zeros(num_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % CACHE_LINE_BYTES
    return torch.from_numpy(raw[start : start + num_bytes]).view(dtype).view(size)


def _widest(groups: KvGroups) -> tuple[int, ...]:
    """The layers of a group that has one in every place; where there are several, all shapes are equal."""
    return max(groups.layers, key=len, default=())


def num_blocks_for(
    config: EngineConfig,
    shapes: Mapping[int, KvShape],
    groups: KvGroups,
    context_length: int,
    dtype: torch.dtype,
    memory: DeviceMemory,
    step_bytes: int = 0,
    draft_token_bytes: int = 0,
) -> int:
    """Blocks that the configuration asks for, or that fit. Raises `InvalidConfig` if not even one does.

    `draft_token_bytes`: KV of a draft model, by token.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    token_bytes = sum(shapes[layer].bytes_per_token(dtype) for layer in _widest(groups))
    block_bytes = config.block_size * (token_bytes + draft_token_bytes)
    if config.kv_cache_bytes is not None:
        kv_bytes, num_blocks = config.kv_cache_bytes, config.kv_cache_bytes // block_bytes
    else:
        demand = BlockDemand(groups.windows, config.block_size)
        usable = config.max_num_seqs * demand.blocks_for(context_length, chunk=config.max_num_batched_tokens)
        kv_bytes = memory.kv_bytes(step_bytes)
        num_blocks = min(usable, kv_bytes // block_bytes)
    if num_blocks < 1:
        small = f"KV memory of {kv_bytes} bytes does not hold one block of {block_bytes} bytes"
        raise InvalidConfig(f"{small}; give it more, or set num_kv_blocks")
    return num_blocks


def largest_step_bytes(
    config: EngineConfig, text_config: Any, dtype: torch.dtype, device: torch.device
) -> int:
    """Memory that the largest step takes besides KV: activations, logits and probabilities.

    On CUDA the parts of split decoding come to it; and where steps are recorded, whose activations are in the
    graphs' pool, `graph_bytes`.
    """
    hidden, vocab_size = int(text_config.hidden_size), int(text_config.vocab_size)
    inner = int(np.max(getattr(text_config, "intermediate_size", None) or 4 * hidden))  # some: one per layer
    activations = config.max_num_batched_tokens * (6 * hidden + 3 * inner) * dtype.itemsize
    heads = int(np.max(getattr(text_config, "num_attention_heads", None) or 1))
    rank = int(getattr(text_config, "kv_lora_rank", None) or 0)
    if rank:  # queries and sums over latent KV (`latent.py`)
        of_head = 2 * rank + int(text_config.qk_rope_head_dim)
        activations += config.max_num_batched_tokens * heads * of_head * dtype.itemsize
    num_bytes = activations + (5 * config.max_num_seqs + SCORED_TOKENS_MAX) * vocab_size * 4
    if device.type != "cuda":
        return num_bytes
    head_dim = int(np.max(getattr(text_config, "head_dim", None) or hidden // heads))
    num_bytes += split_bytes_max(config.max_num_seqs, heads, rank or head_dim)
    if config.cuda_graphs:
        num_bytes += graph_bytes(config.max_num_seqs, config.max_num_batched_tokens, vocab_size)
    return num_bytes
