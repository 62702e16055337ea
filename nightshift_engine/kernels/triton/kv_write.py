"""Puts a step's keys and values into their slots; as int8 or fp8 with a scale per token and head."""

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
    """Stores each token's keys and values in its slot of `kv`; quantised if `kv` has scales."""
    assert key.stride(2) == value.stride(2) == 1, "a token's values must be contiguous within a head"
    kv_heads, block_size = kv.keys.shape[1:3]
    num_tokens, is_integer = slots.shape[0], kv.keys.dtype == torch.int8
    _write_rows[(triton.cdiv(num_tokens, TOKENS_PER_PROGRAM), kv_heads, 2)](
        key,
        value,
        slots,
        num_tokens,
        *key.stride()[:2],
        *value.stride()[:2],
        *kv.arguments,
        BLOCK_SIZE=block_size,
        KEY_DIM=kv.keys.shape[3],
        KEY_DIM_PADDED=triton.next_power_of_2(kv.keys.shape[3]),
        VALUE_DIM=kv.values.shape[3],
        VALUE_DIM_PADDED=triton.next_power_of_2(kv.values.shape[3]),
        TOKENS=TOKENS_PER_PROGRAM,
        IS_INTEGER=is_integer,
        LARGEST=float((torch.iinfo if is_integer else torch.finfo)(kv.keys.dtype).max),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["slots"])
def _write_rows(
    key,
    value,
    slots,
    num_tokens,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    keys,
    values,
    key_scales,
    value_scales,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_sb,
    stride_sh,
    stride_st,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Keys of some tokens and one head, or their values."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slots + tokens, mask=tokens < num_tokens, other=-1)
    if tl.program_id(2) == 0:
        _write(
            key, (stride_key_token, stride_key_head), keys, (stride_kb, stride_kh, stride_kt),
            key_scales, (stride_sb, stride_sh, stride_st), tokens, slot,
            BLOCK_SIZE, KEY_DIM, KEY_DIM_PADDED, IS_INTEGER, LARGEST,
        )  # fmt: skip
    else:
        _write(
            value, (stride_value_token, stride_value_head), values, (stride_vb, stride_vh, stride_vt),
            value_scales, (stride_sb, stride_sh, stride_st), tokens, slot,
            BLOCK_SIZE, VALUE_DIM, VALUE_DIM_PADDED, IS_INTEGER, LARGEST,
        )  # fmt: skip


@triton.jit
def _write(
    source,
    source_strides,
    memory,
    strides,
    scales,
    scale_strides,
    tokens,
    slot,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    LARGEST: tl.constexpr,
):
    head = tl.program_id(1)
    is_stored = slot >= 0
    rows = tokens.to(tl.int64) * source_strides[0] + head * source_strides[1]
    numbers = load_rows(source, rows, is_stored, DIM, DIM_PADDED)
    blocks, offsets = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    if scales is not None:
        numbers = numbers.to(tl.float32)
        scale = tl.max(tl.abs(numbers), 1) / LARGEST
        numbers = numbers / tl.where(scale == 0.0, 1.0, scale)[:, None]
        if IS_INTEGER:
            numbers = tl.floor(numbers + 0.5)
        tl.store(scales + kv_rows(scale_strides, blocks, head, offsets), scale, mask=is_stored)
    store_rows(memory, kv_rows(strides, blocks, head, offsets), numbers, is_stored, DIM, DIM_PADDED)
