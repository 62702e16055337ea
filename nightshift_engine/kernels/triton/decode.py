"""Paged attention in Triton for decoding: one new token per sequence.

Short of memory bandwidth, and there is one query per sequence, so the keys are cut into splits that programs
read side by side (arXiv 2311.01282, and the FlashDecoding note of 2023); `_merge_splits` puts the parts
together. A split has a fixed size and a fixed place in its sequence, and each is computed by one program, so
the number of programs and the other sequences of a step change nothing in the result.

Splits that neighbouring sequences have in common, as rows of one prompt have, are read once for as many of
them as fit a tile's rows, which are few heads and padding otherwise (cascade attention: arXiv 2402.05099,
2501.01005). Each row computes what it would alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import DOT_ROWS_MIN, IS_INTERPRETED, PagedKv, Shape, Tile
from .tile import LOG2_E, load_rows, new_softmax, scan_keys, store_rows

PROGRAMS_WANTED = 1024
"""Programs in flight for which a step with few sequences is spread over its splits (8 x 128 processors)."""


@dataclass(frozen=True, slots=True)
class SplitParts:
    """The buffers in which decoding programs leave their parts; one set serves all layers, one after
    another.
    """

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

    @property
    def arguments(self) -> tuple[Tensor | int, ...]:
        """Memory and strides, as both kernels begin their arguments."""
        return (
            self.sums,
            self.maxima,
            self.denominators,
            *self.sums.stride()[:3],
            *self.maxima.stride()[:2],
        )


def attend_decodes(
    q: Tensor,  # [sequences, heads, key_dim]: one new token each
    kv: PagedKv,
    out: Tensor,  # [sequences, heads, value_dim]
    *,
    seqused_k: Tensor,  # [sequences], int32: 0 where there is none, whose row of `out` becomes zeros
    max_seqlen_k: int,
    block_table: Tensor,  # [sequences, blocks], int32
    softmax_scale: float,
    split_size: int,  # from `split_tokens`
    parts: SplitParts,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,  # [heads]
    shared_tokens: Tensor | None = None,  # [sequences], int32: as `StepLayout.shared_tokens`
    programs_wanted: int = PROGRAMS_WANTED,
) -> None:
    """Attention of each sequence's newest token; how the work is spread changes no result.

    Layers with a window share nothing, nor do those with more than half as many heads as a tile has rows.
    """
    shape = Shape.of_tensors(q, kv)
    num_sequences, num_splits = q.shape[0], -(-max_seqlen_k // split_size)
    assert parts.sums.shape[0] >= num_sequences, f"parts for {parts.sums.shape[0]} sequences"
    assert parts.sums.shape[2] >= num_splits, f"parts for {parts.sums.shape[2]} splits, {num_splits} needed"
    wanted = -(-programs_wanted // (num_sequences * shape.kv_heads))
    tile = _tile(shape, q.dtype, split_size)
    tile_size = tile.rows // shape.group
    if window is not None or tile_size < 2:
        shared_tokens = None
    num_tiles = 0 if shared_tokens is None else num_sequences // tile_size
    _attend_splits[(num_tiles + num_sequences, shape.kv_heads, min(num_splits, wanted))](
        *parts.arguments,
        q,
        block_table,
        seqused_k,
        shared_tokens,
        num_tiles,
        softmax_scale,
        softcap,
        window,
        *q.stride()[:2],
        block_table.stride(0),
        *kv.arguments,
        **shape.constants,
        **tile.constants,
        SPLIT=split_size,
    )
    _merge_splits[(num_sequences, shape.heads)](
        *parts.arguments,
        sinks,
        out,
        seqused_k,
        window,
        *out.stride()[:2],
        VALUE_DIM=shape.value_dim,
        VALUE_DIM_PADDED=triton.next_power_of_2(shape.value_dim),
        SPLIT=split_size,
        num_warps=2,
    )


def _tile(shape: Shape, dtype: torch.dtype, split_size: int) -> Tile:
    rows = max(DOT_ROWS_MIN, triton.next_power_of_2(shape.group))
    if IS_INTERPRETED:
        return Tile(rows, min(32, split_size), num_warps=4, num_stages=1)
    if dtype == torch.float32:
        return Tile(rows, min(32 if shape.widest <= 128 else 16, split_size), num_warps=4, num_stages=2)
    if shape.widest > 128:
        return Tile(rows, min(32, split_size), num_warps=4, num_stages=2)
    return Tile(rows, min(64, split_size), num_warps=4, num_stages=2)


@triton.jit(
    do_not_specialize=["stride_table", "num_tiles"],
    do_not_specialize_on_alignment=["block_table", "shared_tokens"],
)
def _attend_splits(
    sums,
    maxima,
    denominators,
    stride_part_sequence,
    stride_part_head,
    stride_part_split,
    stride_sum_sequence,
    stride_sum_head,
    q_memory,
    block_table,
    seqused_k,
    shared_tokens,
    num_tiles,
    scale,
    softcap,
    window,
    stride_qt,
    stride_qh,
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
    SPLIT: tl.constexpr,
):
    """Every n-th split of one sequence's keys, for all query heads of one KV head; n programs share them.

    The first programs have a tile of sequences and the splits that all of these share; the others the rest.
    """
    rows = tl.arange(0, ROWS)
    first, num_members = tl.program_id(0) - num_tiles, 1
    num_shared = 0
    if shared_tokens is not None:
        tile_size: tl.constexpr = ROWS // GROUP
        is_tile = first < 0
        tile = tl.where(is_tile, first + num_tiles, first // tile_size)
        # The first sequence of a tile shares with the others, not with the one before.
        is_other = (rows > 0) & (rows < tile_size) & (tile < num_tiles)
        shared = tl.load(shared_tokens + tile * tile_size + rows, mask=is_other, other=0x7FFFFFFF)
        num_shared = tl.where(tile < num_tiles, tl.min(shared, 0) // SPLIT, 0)
        first = tl.where(is_tile, tile * tile_size, first)
        num_members = tl.where(is_tile, tile_size, 1)
    kv_head, sequences = tl.program_id(1), first + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = rows < num_members * GROUP
    q_rows = sequences.to(tl.int64) * stride_qt + heads * stride_qh
    q = load_rows(q_memory, q_rows, is_row, KEY_DIM, KEY_DIM_PADDED)
    part_rows = sequences.to(tl.int64) * stride_part_sequence + heads * stride_part_head
    sum_rows = sequences.to(tl.int64) * stride_sum_sequence + heads * stride_sum_head
    positions = tl.load(seqused_k + sequences, mask=is_row, other=0) - 1
    length = tl.load(seqused_k + first)  # the shared splits are whole, so that of any sequence will do
    first_seen = _first_seen(length, window)
    begin_split, end_split = first_seen // SPLIT, (length + SPLIT - 1) // SPLIT
    if shared_tokens is not None:
        begin_split = tl.where(num_members > 1, 0, num_shared)
        end_split = tl.where(num_members > 1, num_shared, end_split)
    for split in range(begin_split + tl.program_id(2), end_split, tl.num_programs(2)):
        maximum, denominator, total = new_softmax(None, heads, is_row, ROWS, VALUE_DIM_PADDED)
        begin = tl.maximum(split * SPLIT, first_seen // COLUMNS * COLUMNS)
        maximum, denominator, total = scan_keys(
            q, positions, maximum, denominator, total,
            begin, tl.minimum(split * SPLIT + SPLIT, length), length,
            block_table + first * stride_table,
            (keys, values, key_scales, value_scales),
            ((stride_kb, stride_kh, stride_kt), (stride_vb, stride_vh, stride_vt),
             (stride_sb, stride_sh, stride_st)),
            kv_head, scale, softcap, window,
            KEY_DIM, KEY_DIM_PADDED, VALUE_DIM, VALUE_DIM_PADDED, BLOCK_SIZE, COLUMNS,
        )  # fmt: skip
        store_rows(sums, part_rows + split * stride_part_split, total, is_row, VALUE_DIM, VALUE_DIM_PADDED)
        tl.store(maxima + sum_rows + split, maximum, mask=is_row)
        tl.store(denominators + sum_rows + split, denominator, mask=is_row)


@triton.jit
def _merge_splits(
    sums,
    maxima,
    denominators,
    stride_part_sequence,
    stride_part_head,
    stride_part_split,
    stride_sum_sequence,
    stride_sum_head,
    sinks,
    out,
    seqused_k,
    window,
    stride_ot,
    stride_oh,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Puts one head's parts together, in the order of the splits."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(seqused_k + sequence)
    dims = tl.arange(0, VALUE_DIM_PADDED)
    if sinks is not None:
        maximum = tl.load(sinks + head).to(tl.float32) * LOG2_E
        denominator = 1.0
    else:
        maximum = float("-inf")
        denominator = 0.0
    total = tl.zeros([VALUE_DIM_PADDED], tl.float32)
    sum_row = sequence * stride_sum_sequence + head * stride_sum_head
    part_row = sequence * stride_part_sequence + head * stride_part_head
    for split in range(_first_seen(length, window) // SPLIT, (length + SPLIT - 1) // SPLIT):
        part_maximum = tl.load(maxima + sum_row + split)
        part = tl.load(sums + part_row + split * stride_part_split + dims, mask=dims < VALUE_DIM, other=0.0)
        # Every split that is merged has at least one visible key, so its maximum is finite.
        new_maximum = tl.maximum(maximum, part_maximum)
        fading = tl.exp2(maximum - new_maximum)
        weight = tl.exp2(part_maximum - new_maximum)
        denominator = denominator * fading + tl.load(denominators + sum_row + split) * weight
        total = total * fading + part * weight
        maximum = new_maximum
    # A sequence that is not there has seen nothing: its row becomes zeros.
    denominator = tl.where(length > 0, denominator, 1.0)
    tl.store(
        out + sequence * stride_ot + head * stride_oh + dims,
        (total / denominator).to(out.dtype.element_ty),
        mask=dims < VALUE_DIM,
    )


@triton.jit
def _first_seen(length, window):
    """The first key that the newest token sees."""
    first_seen = 0
    if window is not None:
        first_seen = tl.maximum(length - window, 0)
    return first_seen
