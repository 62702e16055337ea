"""Triton kernel for a linear layer over narrow weights: codes become numbers in registers.

Numbers are rounded to the dtype of the inputs as those of a dequantised layer are, and sums are float32. A
program computes some rows and columns, each over all inputs in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED

INT4, INT8, FP8 = range(3)
"""Kinds of codes."""
HEIGHTS = (16, 64)
"""Rows that a program takes: the first that all rows fit into, else the last."""
COLUMNS = 64
INPUTS = (64, 32, 16)
"""Inputs of one product, the first that divides a group."""
DOT_IN_FLOAT32 = tl.constexpr(IS_INTERPRETED)
"""The interpreter cannot multiply matrices of bfloat16."""


def multiply_narrow(
    x: Tensor,  # [rows, k]
    codes: Tensor,  # uint8 [n, padded k], or for int4 [n, padded k / 2]: see `inputs_of`
    scales: Tensor,  # [n, groups], float32
    zeros: Tensor | None,  # [n, groups], int16
    bias: Tensor | None,  # [n]
    out: Tensor,  # [rows, n]
    *,
    code: int,
    group_size: int,
    height: int | None = None,
) -> None:
    """Writes `x @ weight.T + bias`. `group_size` is one that `inputs_of` takes.

    Codes are padded to whole products. Of two runs of `inputs_of(group_size)` inputs that follow each other,
    int4 has the first in the lower half of its bytes and the second in the upper.
    """
    rows, k = x.shape
    n = len(scales)
    assert x.stride(1) == 1, "elements of a row must lie together"
    assert out.stride(1) == 1, "elements of a row must lie together"
    assert out.shape == (rows, n), f"{tuple(out.shape)} is not {(rows, n)}"
    height = height or next((height for height in HEIGHTS if rows <= height), HEIGHTS[-1])
    _multiply[(triton.cdiv(n, COLUMNS), triton.cdiv(rows, height))](
        x,
        codes,
        scales,
        zeros,
        bias,
        out,
        rows,
        x.stride(0),
        out.stride(0),
        N=n,
        K=k,
        GROUPS=scales.shape[1],
        GROUP_SIZE=group_size,
        CODE=code,
        HEIGHT=height,
        COLUMNS=COLUMNS,
        INPUTS=inputs_of(group_size),
        num_warps=4,
        num_stages=3,
    )


def inputs_of(group_size: int) -> int:
    """Inputs of one product, which lie in one group. Raises ValueError if it takes no such groups."""
    inputs = next((inputs for inputs in INPUTS if group_size % inputs == 0), None)
    if inputs is None:
        raise ValueError(f"groups of {group_size} inputs")
    return inputs


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x,
    codes,
    scales,
    zeros,
    bias,
    out,
    rows,
    stride_x,
    stride_out,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    CODE: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)).to(tl.int64)
    offsets = tl.arange(0, INPUTS)
    is_column, is_row = column < N, row < rows
    HALVES: tl.constexpr = 2 if CODE == 0 else 1
    STEPS: tl.constexpr = (K + HALVES * INPUTS - 1) // (HALVES * INPUTS)
    of_column = codes + column.to(tl.int64)[:, None] * (STEPS * INPUTS) + offsets[None, :]
    total = tl.zeros([HEIGHT, COLUMNS], tl.float32)
    for step in range(STEPS):
        packed = tl.load(of_column + step * INPUTS, mask=is_column[:, None], other=0)  # [columns, inputs]
        for half in tl.static_range(HALVES):
            first = (step * HALVES + half) * INPUTS
            inputs = first + offsets
            given = tl.load(
                x + row[:, None] * stride_x + inputs[None, :],
                mask=is_row[:, None] & (inputs < K)[None, :],
                other=0.0,
            )
            group = tl.minimum(first // GROUP_SIZE, GROUPS - 1)
            at = column * GROUPS + group
            values = _values(packed, half, CODE)
            if zeros is not None:
                values -= tl.load(zeros + at, mask=is_column, other=0).to(tl.float32)[:, None]
            values *= tl.load(scales + at, mask=is_column, other=0.0)[:, None]
            total += _dot(given, tl.trans(values.to(given.dtype)))
    if bias is not None:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    written = out + row[:, None] * stride_out + column[None, :]
    tl.store(written, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _values(packed, half: tl.constexpr, CODE: tl.constexpr):
    """Codes, which are bytes, as float32."""
    codes = packed.to(tl.int32)
    if CODE == 0:
        values = (((codes >> (4 * half)) & 15) - 8).to(tl.float32)
    elif CODE == 1:
        values = ((codes ^ 128) - 128).to(tl.float32)
    else:  # e4m3: float32 has its exponents 120 higher; subnormal numbers are multiples of 2^-9
        magnitude = codes & 127
        normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        values = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
        values = tl.where(codes > 127, -values, values)
    return values


@triton.jit
def _dot(a, b):
    if DOT_IN_FLOAT32:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision="ieee")
