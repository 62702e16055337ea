"""Triton kernels for low-rank adapters: `out += factor * (x A^T) B` for the rows of each adapter.

A program takes a tile of rows of one adapter; slots, rows and tiles are read from the device. Sums are
float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import DOT_ROWS_MIN
from .tile import dot

TILE_ROWS = 16
"""Rows of a tile at most, as in `execution/decoder/adapters/rows.py`."""
INPUTS_AT_ONCE = 64
OUTPUTS_PER_PROGRAM = 128
WEIGHTS_AT_ONCE = 4096
"""Numbers of `a`, and of `b`, that a program holds at most: a few times as many fit its shared memory."""


def add_adapters(
    x: Tensor,  # [.., inputs]
    a: Tensor,  # [slots, parts * rank, inputs]
    b: Tensor,  # [slots, blocks, rank, 16]: a block has outputs of one part
    part_ends: Sequence[int],  # the output behind each part
    ranks: Tensor,  # [slots], int32; 0: the slot's adapter leaves the layer as it is
    rows: Tensor,  # [rows], int32: of x and out, those of one slot together
    tiles: Tensor,  # [tiles, 3], int32: a slot, the first of its rows, how many
    out: Tensor,  # [.., outputs]
    factor: float,
) -> None:
    """Adds `factor` times what the adapters make of their rows of `x` to those of `out`."""
    assert x.stride(1) == 1, "elements of a row must lie together"
    assert out.stride(1) == 1, "elements of a row must lie together"
    _, blocks, rank, in_block = b.shape
    inputs = a.shape[2]
    shrunk = torch.empty(len(rows), a.shape[1], dtype=torch.float32, device=x.device)
    padded = max(DOT_ROWS_MIN, int(triton.next_power_of_2(rank)))
    constants = {"RANK": rank, "PARTS": len(part_ends), "RANK_PADDED": padded, "ROWS": TILE_ROWS}
    _shrink[(len(tiles), len(part_ends))](
        x, a, ranks, rows, tiles, shrunk, x.stride(0),
        INPUTS=inputs, COLUMNS=min(INPUTS_AT_ONCE, WEIGHTS_AT_ONCE // padded), num_warps=4, **constants,
    )  # fmt: skip
    columns = min(OUTPUTS_PER_PROGRAM, WEIGHTS_AT_ONCE // padded)
    first = 0
    for part, (begin, end) in enumerate(pairwise((0, *part_ends))):
        _expand[(len(tiles), triton.cdiv(end - begin, columns))](
            shrunk, b, ranks, rows, tiles, out, out.stride(0), factor,
            PART=part, BEGIN=begin, END=end, FIRST_BLOCK=first, BLOCKS=blocks, IN_BLOCK=in_block,
            COLUMNS=columns, num_warps=4, **constants,
        )  # fmt: skip
        first += triton.cdiv(end - begin, in_block)


@triton.jit
def _shrink(
    x,
    a,
    ranks,
    rows,
    tiles,
    shrunk,
    stride_x,
    INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The rows of a tile times the rows of `a` of one part."""
    tile, part = tl.program_id(0), tl.program_id(1)
    slot = tl.load(tiles + 3 * tile).to(tl.int64)
    first, count = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if tl.load(ranks + slot) == 0:
        return
    places, r = tl.arange(0, ROWS), tl.arange(0, RANK_PADDED)
    is_row, is_rank = places < count, r < RANK
    row = tl.load(rows + first + places, mask=is_row, other=0).to(tl.int64)
    weights = a + ((slot * PARTS + part) * RANK + r) * INPUTS
    total = tl.zeros((ROWS, RANK_PADDED), dtype=tl.float32)
    for begin in range(0, INPUTS, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        is_column = columns < INPUTS
        given = tl.load(
            x + row[:, None] * stride_x + columns[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0.0,
        )
        w = tl.load(
            weights[None, :] + columns[:, None], mask=is_rank[None, :] & is_column[:, None], other=0.0
        )
        total += dot(given, w)
    to = shrunk + (first + places)[:, None] * (PARTS * RANK) + part * RANK + r[None, :]
    tl.store(to, total, mask=is_row[:, None] & is_rank[None, :])


@triton.jit
def _expand(
    shrunk,
    b,
    ranks,
    rows,
    tiles,
    out,
    stride_out,
    factor,
    PART: tl.constexpr,
    BEGIN: tl.constexpr,
    END: tl.constexpr,
    FIRST_BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    IN_BLOCK: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some outputs, of one part, of the rows of a tile."""
    tile = tl.program_id(0)
    slot = tl.load(tiles + 3 * tile).to(tl.int64)
    first, count = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if tl.load(ranks + slot) == 0:
        return
    places, r = tl.arange(0, ROWS), tl.arange(0, RANK_PADDED)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_rank, is_column = places < count, r < RANK, columns < END - BEGIN
    row = tl.load(rows + first + places, mask=is_row, other=0).to(tl.int64)
    given = tl.load(
        shrunk + (first + places)[:, None] * (PARTS * RANK) + PART * RANK + r[None, :],
        mask=is_row[:, None] & is_rank[None, :],
        other=0.0,
    )
    blocks = slot * BLOCKS + FIRST_BLOCK + columns // IN_BLOCK
    w = tl.load(
        b + (blocks[None, :] * RANK + r[:, None]) * IN_BLOCK + (columns % IN_BLOCK)[None, :],
        mask=is_rank[:, None] & is_column[None, :],
        other=0.0,
    )
    y = dot(given, w.to(tl.float32)) * factor
    to = out + row[:, None] * stride_out + BEGIN + columns[None, :]
    mask = is_row[:, None] & is_column[None, :]
    before = tl.load(to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to, (before + y).to(out.dtype.element_ty), mask=mask)
