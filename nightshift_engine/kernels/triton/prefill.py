"""Paged attention in Triton for chunks of prompts: a program walks a tile of queries over keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, PagedKv, Shape, Tile
from .tile import load_rows, new_softmax, scan_keys, store_rows


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
    """Causal attention of new tokens; `window` is what a query sees, itself included.

    Sequences without new tokens may follow the others. Rows that are no sequence's are left alone.
    """
    shape = Shape.of_tensors(q, kv)
    tile = _tile(shape, q.dtype)
    queries = tile.rows // shape.group
    num_sequences = seqused_k.shape[0]
    # Each sequence wastes less than one tile: an upper bound that needs no look at the device's numbers.
    num_tiles = q.shape[0] // queries + num_sequences
    _attend_chunk[(num_tiles, shape.kv_heads)](
        q,
        sinks,
        out,
        block_table,
        cu_seqlens_q,
        seqused_k,
        num_sequences,
        softmax_scale,
        softcap,
        window,
        *q.stride()[:2],
        *out.stride()[:2],
        block_table.stride(0),
        *kv.arguments,
        **shape.constants,
        **tile.constants,
        QUERIES=queries,
    )


def _tile(shape: Shape, dtype: torch.dtype) -> Tile:
    """Bounded so that tiles of q, k and v fit 99 KB of shared memory."""
    group, dim = triton.next_power_of_2(shape.group), shape.widest
    if IS_INTERPRETED:
        return Tile(max(32, group), 32, num_warps=4, num_stages=1)
    if dtype == torch.float32:
        side = 32 if dim <= 128 else 16
        return Tile(max(side, group), side, num_warps=4, num_stages=1)
    if dim > 128:
        return Tile(max(64, group), 32, num_warps=8, num_stages=1)
    return Tile(max(128, group), 32 if dim > 64 else 64, num_warps=4, num_stages=3)


# A step's tables are as wide as its longest context and begin behind those of decoding sequences: specialised
# on these, the kernel would be compiled again, for about a second, in the middle of a run.
@triton.jit(
    do_not_specialize=["num_sequences", "stride_table"],
    do_not_specialize_on_alignment=["block_table", "cu_seqlens_q", "seqused_k"],
)
def _attend_chunk(
    q_memory,
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
    stride_table,
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
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """One tile of `QUERIES` new tokens of one sequence, all query heads of one KV head."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = _sequence_of(tile, cu_seqlens_q, num_sequences, QUERIES)
    start = tl.load(cu_seqlens_q + sequence)
    num_queries = tl.load(cu_seqlens_q + sequence + 1) - start
    first_query = (tile - (start // QUERIES + sequence)) * QUERIES
    # Tiles before the first sequence's and behind the last one's have nothing to do.
    if (first_query >= 0) & (first_query < num_queries):
        length = tl.load(seqused_k + sequence)
        rows = tl.arange(0, ROWS)
        queries = first_query + rows // GROUP
        heads = kv_head * GROUP + rows % GROUP
        is_row = (rows < QUERIES * GROUP) & (queries < num_queries)
        tokens = (start + queries).to(tl.int64)
        q = load_rows(q_memory, tokens * stride_qt + heads * stride_qh, is_row, KEY_DIM, KEY_DIM_PADDED)
        maximum, denominator, total = new_softmax(sinks, heads, is_row, ROWS, VALUE_DIM_PADDED)
        first_position = length - num_queries + first_query
        begin = 0
        if window is not None:
            begin = tl.maximum(first_position - window + 1, 0) // COLUMNS * COLUMNS
        maximum, denominator, total = scan_keys(
            q, length - num_queries + queries, maximum, denominator, total,
            begin, tl.minimum(first_position + QUERIES, length), length,
            block_table + sequence * stride_table,
            (keys, values, key_scales, value_scales),
            ((stride_kb, stride_kh, stride_kt), (stride_vb, stride_vh, stride_vt),
             (stride_sb, stride_sh, stride_st)),
            kv_head, scale, softcap, window,
            KEY_DIM, KEY_DIM_PADDED, VALUE_DIM, VALUE_DIM_PADDED, BLOCK_SIZE, COLUMNS,
        )  # fmt: skip
        # A padding row may have seen nothing at all.
        denominator = tl.where(is_row, denominator, 1.0)
        out_rows = tokens * stride_ot + heads * stride_oh
        store_rows(out, out_rows, total / denominator[:, None], is_row, VALUE_DIM, VALUE_DIM_PADDED)


@triton.jit
def _sequence_of(tile, cu_seqlens_q, num_sequences, QUERIES: tl.constexpr):
    """Bisects: sequence i owns the tiles from cu_seqlens_q[i] // QUERIES + i on, whatever its length."""
    low = 0
    high = num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_q + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low
