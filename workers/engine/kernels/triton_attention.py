"""Paged attention in Triton: chunks of prompts, and single new tokens, over blocks of KV memory.

Two kernels, because they are short of different things. `_attend_chunk` is short of arithmetic: a program
takes a tile of queries and walks over their keys. `_attend_splits` is short of memory bandwidth: there is one
query per sequence, so the keys are cut into splits that programs read side by side, and `_merge_splits` puts
the parts together. A split has a fixed size and a fixed place in its sequence, and each is computed by one
program, so the number of programs and the other sequences of a step change nothing in the result.

In both, the query heads that share a KV head are rows of one tile: each key and value is loaded once for all
of them. KV memory is `[blocks, kv_heads, block_size, head_dim]` or any other order of these strides; a block
may have any size. Works under Triton's interpreter (TRITON_INTERPRET=1, set before this module is imported).

Sources: online softmax, arXiv 2205.14135; splits over keys with a merge, arXiv 2311.01282 and the
FlashDecoding note of 2023; the search for a tile's sequence is vLLM's idea.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

SPLIT_TOKENS_MIN = 512
"""Keys per split: some hundred KB to read, so that starting a program and storing its part cost little."""
SPLITS_MAX = 64
"""Bounds the memory for parts; longer contexts get longer splits."""
PROGRAMS_WANTED = 1024
"""Programs in flight for which a step with few sequences is spread over its splits (8 x 128 processors)."""
DOT_ROWS_MIN = 16
"""The smallest tile side that `tl.dot` takes."""


@dataclass(frozen=True, slots=True)
class PagedKv:
    """One layer's KV memory as the kernels see it. Scales are there if the elements are int8 or fp8."""

    keys: Tensor  # [blocks, kv_heads, block_size, key_dim]
    values: Tensor  # [blocks, kv_heads, block_size, value_dim]
    key_scales: Tensor | None = None  # [blocks, kv_heads, block_size], float32
    value_scales: Tensor | None = None

    @property
    def is_scaled(self) -> bool:
        return self.key_scales is not None


def split_tokens(context_length: int) -> int:
    """Keys per split for an engine with this context: a power of two, the same for every step of it."""
    size = SPLIT_TOKENS_MIN
    while size * SPLITS_MAX < context_length:
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class SplitParts:
    """Where decoding programs leave their parts; one set serves all layers, one after another."""

    sums: Tensor  # [sequences, heads, splits, value_dim], float32
    maxima: Tensor  # [sequences, heads, splits], float32, in units of log2
    denominators: Tensor  # [sequences, heads, splits], float32

    @classmethod
    def allocate(
        cls, sequences: int, heads: int, splits: int, value_dim: int, device: torch.device
    ) -> SplitParts:
        def empty(*size: int) -> Tensor:
            return torch.empty(size, dtype=torch.float32, device=device)

        return cls(
            empty(sequences, heads, splits, value_dim),
            empty(sequences, heads, splits),
            empty(sequences, heads, splits),
        )


def attend_chunks(
    q: Tensor,  # [tokens, heads, key_dim]
    kv: PagedKv,
    out: Tensor,  # [tokens, heads, value_dim]
    *,
    cu_seqlens_q: Tensor,  # [sequences + 1], int32: rows of each sequence
    seqused_k: Tensor,  # [sequences], int32: tokens in KV memory, this step's included
    block_table: Tensor,  # [sequences, blocks], int32
    softmax_scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,  # [heads]
) -> None:
    """Causal attention of any number of new tokens per sequence; the last query is the last key's token.

    `window` is the number of tokens a query sees, itself included. `sinks` are logits that take weight and
    give no value. Rows before `cu_seqlens_q[0]` and behind its last are left as they are.
    """
    shape = _Shape.of(q, kv)
    rows, columns, num_warps, num_stages = _chunk_tile(shape, q.dtype)
    queries = rows // shape.group
    num_sequences = seqused_k.shape[0]
    # Each sequence wastes less than one tile: an upper bound that needs no look at the device's numbers.
    num_tiles = q.shape[0] // queries + num_sequences
    _attend_chunk[(num_tiles, shape.kv_heads)](
        q,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        sinks,
        out,
        block_table,
        cu_seqlens_q,
        seqused_k,
        num_sequences,
        softmax_scale,
        softcap or 0.0,
        window or 0,
        *q.stride()[:2],
        *out.stride()[:2],
        *kv.keys.stride()[:3],
        *kv.values.stride()[:3],
        *_scale_strides(kv),
        block_table.stride(0),
        **shape.constants(kv),
        ROWS=rows,
        COLUMNS=columns,
        QUERIES=queries,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def attend_decodes(
    q: Tensor,  # [sequences, heads, key_dim]: one new token each
    kv: PagedKv,
    out: Tensor,  # [sequences, heads, value_dim]
    *,
    seqused_k: Tensor,  # [sequences], int32
    max_seqlen_k: int,
    block_table: Tensor,  # [sequences, blocks], int32
    softmax_scale: float,
    split_size: int,  # from `split_tokens`
    parts: SplitParts,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,  # [heads]
    programs_wanted: int = PROGRAMS_WANTED,
) -> None:
    """Attention of each sequence's newest token. `parts` must have room for `max_seqlen_k`'s splits.

    `max_seqlen_k` and `programs_wanted` only bound the work that is looked for and spread it, and do not
    change the result: a graph is captured with the longest context possible.
    """
    shape = _Shape.of(q, kv)
    num_sequences, num_splits = q.shape[0], -(-max_seqlen_k // split_size)
    assert parts.sums.shape[0] >= num_sequences, f"parts for {parts.sums.shape[0]} sequences"
    assert parts.sums.shape[2] >= num_splits, f"parts for {parts.sums.shape[2]} splits, {num_splits} needed"
    wanted = -(-programs_wanted // (num_sequences * shape.kv_heads))
    columns, num_warps, num_stages = _decode_tile(shape, q.dtype)
    flags: dict[str, Any] = {"HAS_WINDOW": window is not None, "SPLIT": split_size}
    _attend_splits[(num_sequences, shape.kv_heads, min(num_splits, wanted))](
        q,
        kv.keys,
        kv.values,
        kv.key_scales,
        kv.value_scales,
        parts.sums,
        parts.maxima,
        parts.denominators,
        block_table,
        seqused_k,
        softmax_scale,
        softcap or 0.0,
        window or 0,
        *q.stride()[:2],
        *kv.keys.stride()[:3],
        *kv.values.stride()[:3],
        *_scale_strides(kv),
        *parts.sums.stride()[:3],
        *parts.maxima.stride()[:2],
        block_table.stride(0),
        **shape.constants(kv),
        **flags,
        ROWS=max(DOT_ROWS_MIN, triton.next_power_of_2(shape.group)),
        COLUMNS=min(columns, split_size),
        HAS_SOFTCAP=softcap is not None,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    _merge_splits[(num_sequences, shape.heads)](
        parts.sums,
        parts.maxima,
        parts.denominators,
        sinks,
        out,
        seqused_k,
        window or 0,
        *parts.sums.stride()[:3],
        *parts.maxima.stride()[:2],
        *out.stride()[:2],
        VALUE_DIM=shape.value_dim,
        VALUE_DIM_PADDED=triton.next_power_of_2(shape.value_dim),
        **flags,
        HAS_SINKS=sinks is not None,
        num_warps=2,
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    heads: int
    kv_heads: int
    group: int
    key_dim: int
    value_dim: int
    block_size: int

    @classmethod
    def of(cls, q: Tensor, kv: PagedKv) -> _Shape:
        _, kv_heads, block_size, key_dim = kv.keys.shape
        heads = q.shape[1]
        assert q.stride(2) == 1, "queries must be contiguous within a head"
        assert kv.keys.stride(3) == 1, "keys must be contiguous within a head"
        assert kv.values.stride(3) == 1, "values must be contiguous within a head"
        assert heads % kv_heads == 0, f"{heads} query heads over {kv_heads} KV heads"
        return cls(heads, kv_heads, heads // kv_heads, key_dim, kv.values.shape[3], block_size)

    def constants(self, kv: PagedKv) -> dict[str, Any]:
        return {
            "GROUP": self.group,
            "KEY_DIM": self.key_dim,
            "KEY_DIM_PADDED": _padded(self.key_dim),
            "VALUE_DIM": self.value_dim,
            "VALUE_DIM_PADDED": _padded(self.value_dim),
            "BLOCK_SIZE": self.block_size,
            "IS_SCALED": kv.is_scaled,
            # The interpreter cannot multiply matrices of bfloat16.
            "DOT_IN_FLOAT32": IS_INTERPRETED,
        }


def _padded(dim: int) -> int:
    return max(DOT_ROWS_MIN, int(triton.next_power_of_2(dim)))


def _chunk_tile(shape: _Shape, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Rows, columns, warps and stages. Bounded so that tiles of q, k and v fit 99 KB of shared memory."""
    dim = _padded(max(shape.key_dim, shape.value_dim))
    group = triton.next_power_of_2(shape.group)
    if IS_INTERPRETED:
        return max(32, group), 32, 4, 1
    if dtype == torch.float32:
        return max(32 if dim <= 128 else 16, group), 32 if dim <= 128 else 16, 4, 1
    if dim > 128:
        return max(64, group), 32, 8, 1
    return max(128, group), 64, 4 if dim <= 64 else 8, 3


def _decode_tile(shape: _Shape, dtype: torch.dtype) -> tuple[int, int, int]:
    """Columns, warps and stages."""
    if IS_INTERPRETED:
        return 32, 4, 1
    dim = _padded(max(shape.key_dim, shape.value_dim))
    if dtype == torch.float32:
        return 32 if dim <= 128 else 16, 4, 2
    return (64, 4, 3) if dim <= 128 else (32, 4, 2)


def _scale_strides(kv: PagedKv) -> tuple[int, int, int]:
    """Strides of the scales, the same for keys and values (zeros if there are none)."""
    if kv.key_scales is None or kv.value_scales is None:
        return 0, 0, 0
    assert kv.key_scales.stride() == kv.value_scales.stride(), "scales of keys and values lie differently"
    block, head, token = kv.key_scales.stride()
    return block, head, token


@triton.jit
def _load_tile(
    memory,
    scales,
    blocks,
    offsets,
    kv_head,
    is_known,
    stride_block,
    stride_head,
    stride_token,
    stride_scale_block,
    stride_scale_head,
    stride_scale_token,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    IS_SCALED: tl.constexpr,
):
    """Keys or values of some tokens `[tokens, dim]`, zero where not known, and their scales `[tokens]`."""
    dims = tl.arange(0, DIM_PADDED)
    rows = blocks * stride_block + kv_head * stride_head + offsets * stride_token
    tile = tl.load(
        memory + rows[:, None] + dims[None, :], mask=is_known[:, None] & (dims < DIM)[None, :], other=0.0
    )
    if IS_SCALED:
        rows = blocks * stride_scale_block + kv_head * stride_scale_head + offsets * stride_scale_token
        scale = tl.load(scales + rows, mask=is_known, other=0.0)
        tile = tile.to(tl.float32)  # the interpreter has no way from int8 to bfloat16 but this one
    else:
        scale = tl.full(is_known.shape, 1.0, tl.float32)
    return tile, scale


@triton.jit
def _dot(a, b, DOT_IN_FLOAT32: tl.constexpr):
    if DOT_IN_FLOAT32:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _softcapped(scores, cap):
    """cap * tanh(scores / cap), by exp2: there is no tanh in the interpreter."""
    return cap * (1.0 - 2.0 / (tl.exp2(scores / cap * 2.8853900817779268) + 1.0))


@triton.jit
def _scan_tile(
    q,
    positions,
    length,
    maximum,
    denominator,
    total,
    first,
    table,
    keys,
    values,
    key_scales,
    value_scales,
    kv_head,
    scale,
    softcap,
    window,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_sb,
    stride_sh,
    stride_st,
    KEY_DIM: tl.constexpr,
    KEY_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_SCALED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    DOT_IN_FLOAT32: tl.constexpr,
):
    """Let queries `[rows, dim]` at `positions` see the keys from `first` on, and carry the online softmax on.

    `maximum` and `denominator` are `[rows]`, `total` `[rows, value_dim]`; maxima are in units of log2.
    """
    tokens = first + tl.arange(0, COLUMNS)
    is_known = tokens < length
    blocks = tl.load(table + tokens // BLOCK_SIZE, mask=is_known, other=0).to(tl.int64)
    offsets = tokens % BLOCK_SIZE
    k, k_scale = _load_tile(
        keys, key_scales, blocks, offsets, kv_head, is_known, stride_kb, stride_kh, stride_kt,
        stride_sb, stride_sh, stride_st, KEY_DIM, KEY_DIM_PADDED, IS_SCALED,
    )  # fmt: skip
    v, v_scale = _load_tile(
        values, value_scales, blocks, offsets, kv_head, is_known, stride_vb, stride_vh, stride_vt,
        stride_sb, stride_sh, stride_st, VALUE_DIM, VALUE_DIM_PADDED, IS_SCALED,
    )  # fmt: skip
    scores = _dot(q, tl.trans(k.to(q.dtype)), DOT_IN_FLOAT32) * scale
    if IS_SCALED:
        scores = scores * k_scale[None, :]
    if HAS_SOFTCAP:
        scores = _softcapped(scores, softcap)
    is_seen = is_known[None, :] & (tokens[None, :] <= positions[:, None])
    if HAS_WINDOW:
        is_seen = is_seen & (tokens[None, :] > positions[:, None] - window)
    scores = tl.where(is_seen, scores * 1.4426950408889634, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    # A row that has seen nothing yet keeps -inf; subtracting 0 instead of it avoids a NaN.
    anchor = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores - anchor[:, None])
    fading = tl.exp2(maximum - anchor)
    denominator = denominator * fading + tl.sum(weights, 1)
    if IS_SCALED:
        weights = weights * v_scale[None, :]
    total = total * fading[:, None] + _dot(weights.to(q.dtype), v.to(q.dtype), DOT_IN_FLOAT32)
    return new_maximum, denominator, total


@triton.jit(do_not_specialize=["num_sequences"])
def _attend_chunk(
    q_memory,
    keys,
    values,
    key_scales,
    value_scales,
    sinks,
    out,
    block_table,
    cu_seqlens_q,
    seqused_k,
    num_sequences,
    scale,
    softcap,
    window,
    stride_qt,
    stride_qh,
    stride_ot,
    stride_oh,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_sb,
    stride_sh,
    stride_st,
    stride_table,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_SCALED: tl.constexpr,
    DOT_IN_FLOAT32: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """One tile of `QUERIES` new tokens of one sequence, all query heads of one KV head.

    Sequence i owns the tiles from cu_seqlens_q[i] // QUERIES + i on: enough for any length, and a sequence is
    found by bisection.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    low = 0
    high = num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_q + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    start = tl.load(cu_seqlens_q + low)
    num_queries = tl.load(cu_seqlens_q + low + 1) - start
    first_query = (tile - (start // QUERIES + low)) * QUERIES
    # Tiles before the first sequence's and behind the last one's have nothing to do.
    if (first_query >= 0) & (first_query < num_queries):
        length = tl.load(seqused_k + low)
        rows = tl.arange(0, ROWS)
        queries = first_query + rows // GROUP
        heads = kv_head * GROUP + rows % GROUP
        is_row = (rows < QUERIES * GROUP) & (queries < num_queries)
        positions = length - num_queries + queries
        dims = tl.arange(0, KEY_DIM_PADDED)
        q_rows = (start + queries).to(tl.int64) * stride_qt + heads * stride_qh
        q = tl.load(
            q_memory + q_rows[:, None] + dims[None, :],
            mask=is_row[:, None] & (dims < KEY_DIM)[None, :],
            other=0.0,
        )
        if HAS_SINKS:
            maximum = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32) * 1.4426950408889634
            denominator = tl.full([ROWS], 1.0, tl.float32)
        else:
            maximum = tl.full([ROWS], float("-inf"), tl.float32)
            denominator = tl.zeros([ROWS], tl.float32)
        total = tl.zeros([ROWS, VALUE_DIM_PADDED], tl.float32)
        first_position = length - num_queries + first_query
        stop = tl.minimum(first_position + QUERIES, length)
        begin = 0
        if HAS_WINDOW:
            begin = tl.maximum(first_position - window + 1, 0) // COLUMNS * COLUMNS
        for first in range(begin, stop, COLUMNS):
            maximum, denominator, total = _scan_tile(
                q, positions, length, maximum, denominator, total, first, block_table + low * stride_table,
                keys, values, key_scales, value_scales, kv_head, scale, softcap, window,
                stride_kb, stride_kh, stride_kt, stride_vb, stride_vh, stride_vt,
                stride_sb, stride_sh, stride_st, KEY_DIM, KEY_DIM_PADDED, VALUE_DIM, VALUE_DIM_PADDED,
                BLOCK_SIZE, COLUMNS, IS_SCALED, HAS_WINDOW, HAS_SOFTCAP, DOT_IN_FLOAT32,
            )  # fmt: skip
        # A padding row may have seen nothing at all.
        denominator = tl.where(is_row, denominator, 1.0)
        value_dims = tl.arange(0, VALUE_DIM_PADDED)
        out_rows = (start + queries).to(tl.int64) * stride_ot + heads * stride_oh
        tl.store(
            out + out_rows[:, None] + value_dims[None, :],
            (total / denominator[:, None]).to(out.dtype.element_ty),
            mask=is_row[:, None] & (value_dims < VALUE_DIM)[None, :],
        )


@triton.jit
def _attend_splits(
    q_memory,
    keys,
    values,
    key_scales,
    value_scales,
    sums,
    maxima,
    denominators,
    block_table,
    seqused_k,
    scale,
    softcap,
    window,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_sb,
    stride_sh,
    stride_st,
    stride_part_sequence,
    stride_part_head,
    stride_part_split,
    stride_sum_sequence,
    stride_sum_head,
    stride_table,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_SCALED: tl.constexpr,
    DOT_IN_FLOAT32: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Every n-th split of one sequence's keys, for all query heads of one KV head; n programs share them."""
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    length = tl.load(seqused_k + sequence)
    rows = tl.arange(0, ROWS)
    heads = kv_head * GROUP + rows
    is_row = rows < GROUP
    dims = tl.arange(0, KEY_DIM_PADDED)
    value_dims = tl.arange(0, VALUE_DIM_PADDED)
    q = tl.load(
        q_memory + sequence.to(tl.int64) * stride_qt + heads[:, None] * stride_qh + dims[None, :],
        mask=is_row[:, None] & (dims < KEY_DIM)[None, :],
        other=0.0,
    )
    positions = tl.zeros([ROWS], tl.int32) + (length - 1)
    first_seen = 0
    if HAS_WINDOW:
        first_seen = tl.maximum(length - window, 0)
    num_splits = (length + SPLIT - 1) // SPLIT
    for split in range(first_seen // SPLIT + tl.program_id(2), num_splits, tl.num_programs(2)):
        maximum = tl.full([ROWS], float("-inf"), tl.float32)
        denominator = tl.zeros([ROWS], tl.float32)
        total = tl.zeros([ROWS, VALUE_DIM_PADDED], tl.float32)
        begin = tl.maximum(split * SPLIT, first_seen // COLUMNS * COLUMNS)
        stop = tl.minimum(split * SPLIT + SPLIT, length)
        for first in range(begin, stop, COLUMNS):
            maximum, denominator, total = _scan_tile(
                q, positions, length, maximum, denominator, total, first,
                block_table + sequence * stride_table,
                keys, values, key_scales, value_scales, kv_head, scale, softcap, window,
                stride_kb, stride_kh, stride_kt, stride_vb, stride_vh, stride_vt,
                stride_sb, stride_sh, stride_st, KEY_DIM, KEY_DIM_PADDED, VALUE_DIM, VALUE_DIM_PADDED,
                BLOCK_SIZE, COLUMNS, IS_SCALED, HAS_WINDOW, HAS_SOFTCAP, DOT_IN_FLOAT32,
            )  # fmt: skip
        part_rows = sequence.to(tl.int64) * stride_part_sequence + heads * stride_part_head
        tl.store(
            sums + (part_rows + split * stride_part_split)[:, None] + value_dims[None, :],
            total,
            mask=is_row[:, None] & (value_dims < VALUE_DIM)[None, :],
        )
        sum_rows = sequence.to(tl.int64) * stride_sum_sequence + heads * stride_sum_head + split
        tl.store(maxima + sum_rows, maximum, mask=is_row)
        tl.store(denominators + sum_rows, denominator, mask=is_row)


@triton.jit
def _merge_splits(
    sums,
    maxima,
    denominators,
    sinks,
    out,
    seqused_k,
    window,
    stride_part_sequence,
    stride_part_head,
    stride_part_split,
    stride_sum_sequence,
    stride_sum_head,
    stride_ot,
    stride_oh,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Put one head's parts together, in the order of the splits."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(seqused_k + sequence)
    dims = tl.arange(0, VALUE_DIM_PADDED)
    first_split = 0
    if HAS_WINDOW:
        first_split = tl.maximum(length - window, 0) // SPLIT
    if HAS_SINKS:
        maximum = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        denominator = 1.0
    else:
        maximum = float("-inf")
        denominator = 0.0
    total = tl.zeros([VALUE_DIM_PADDED], tl.float32)
    sum_row = sequence * stride_sum_sequence + head * stride_sum_head
    part_row = sequence * stride_part_sequence + head * stride_part_head
    for split in range(first_split, (length + SPLIT - 1) // SPLIT):
        part_maximum = tl.load(maxima + sum_row + split)
        part = tl.load(sums + part_row + split * stride_part_split + dims, mask=dims < VALUE_DIM, other=0.0)
        # Every split that is merged has at least one visible key, so its maximum is finite.
        new_maximum = tl.maximum(maximum, part_maximum)
        fading = tl.exp2(maximum - new_maximum)
        weight = tl.exp2(part_maximum - new_maximum)
        denominator = denominator * fading + tl.load(denominators + sum_row + split) * weight
        total = total * fading + part * weight
        maximum = new_maximum
    tl.store(
        out + sequence * stride_ot + head * stride_oh + dims,
        (total / denominator).to(out.dtype.element_ty),
        mask=dims < VALUE_DIM,
    )
