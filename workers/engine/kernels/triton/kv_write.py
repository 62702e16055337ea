"""Puts a step's keys and values into KV memory, in Triton; as int8 or fp8 with a scale per token and head.

A token's slot is block * block_size + offset; a negative slot is skipped. Two tokens never share a slot,
except the reserved one that padding rows write to, whose content is never read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import PagedKv
from .tile import kv_rows, load_rows, store_rows

TOKENS_PER_PROGRAM = 4


def write_kv(
    key: Tensor,  # [tokens, kv_heads, key_dim]
    value: Tensor,  # [tokens, kv_heads, value_dim]
    kv: PagedKv,
    slots: Tensor,  # [tokens], int64
) -> None:
    """Store each token's keys and values in its slot of `kv`; quantised if `kv` has scales."""
    for source, memory, scales in ((key, kv.keys, kv.key_scales), (value, kv.values, kv.value_scales)):
        _write(source, memory, scales, slots)


def _write(source: Tensor, memory: Tensor, scales: Tensor | None, slots: Tensor) -> None:
    _, kv_heads, block_size, dim = memory.shape
    is_integer = memory.dtype == torch.int8
    assert source.stride(2) == 1, "a token's values must be contiguous within a head"
    num_tokens = slots.shape[0]
    grid = (triton.cdiv(num_tokens, TOKENS_PER_PROGRAM), kv_heads)
    _write_rows[grid](
        source,
        memory,
        scales,
        slots,
        num_tokens,
        *source.stride()[:2],
        *memory.stride()[:3],
        *(scales.stride() if scales is not None else (0, 0, 0)),
        BLOCK_SIZE=block_size,
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        TOKENS=TOKENS_PER_PROGRAM,
        IS_INTEGER=is_integer,
        LARGEST=float((torch.iinfo if is_integer else torch.finfo)(memory.dtype).max),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _write_rows(
    source,
    memory,
    scales,
    slots,
    num_tokens,
    stride_token,
    stride_head,
    stride_mb,
    stride_mh,
    stride_mt,
    stride_sb,
    stride_sh,
    stride_st,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    LARGEST: tl.constexpr,
):
    head = tl.program_id(1)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slots + tokens, mask=tokens < num_tokens, other=-1)
    is_stored = slot >= 0
    rows = tokens.to(tl.int64) * stride_token + head * stride_head
    numbers = load_rows(source, rows, is_stored, DIM, DIM_PADDED)
    blocks, offsets = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    if scales is not None:
        numbers = numbers.to(tl.float32)
        scale = tl.max(tl.abs(numbers), 1) / LARGEST
        numbers = numbers / tl.where(scale == 0.0, 1.0, scale)[:, None]
        if IS_INTEGER:
            numbers = tl.floor(numbers + 0.5)
        scale_rows = kv_rows((stride_sb, stride_sh, stride_st), blocks, head, offsets)
        tl.store(scales + scale_rows, scale, mask=is_stored)
    rows = kv_rows((stride_mb, stride_mh, stride_mt), blocks, head, offsets)
    store_rows(memory, rows, numbers, is_stored, DIM, DIM_PADDED)
