"""Triton kernels for the rows between a decoder's linear layers: norms, rotary embeddings, activations.

Numbers are float32 between load and store, whatever is stored. A program computes a row, or some heads of
one, so nothing depends on the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

NONE, RMS, LAYER = range(3)
"""Kinds of norms."""
HEADS_PER_PROGRAM = 8
ACTIVATED_PER_PROGRAM = 1024


@dataclass(frozen=True, slots=True)
class RowNorm:
    """`core(x) * weight + bias` over the elements of a row, or of a head."""

    kind: int
    weight: Tensor | None = None  # float32, as is the bias
    bias: Tensor | None = None
    eps: float = 0.0


NO_NORM = RowNorm(NONE)


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Heads that lie together in each row of queries, keys and values."""

    count: int
    norm: RowNorm = NO_NORM


def norm_rows(
    x: Tensor,  # [.., n]
    norm: RowNorm,
    out: Tensor,  # [rows, n]
    *,
    rows: Tensor | None = None,  # [rows], int64
    adds: bool = False,
    factor: float = 1.0,
) -> None:
    """Rows of `x`, all or those given, normed into `out`; or `factor` times that added to `out`.

    Elements of a row lie together. All rows of `x` may be normed into themselves.
    """
    assert x.stride(1) == 1, "elements of a row must lie together"
    assert out.stride(1) == 1, "elements of a row must lie together"
    columns = int(triton.next_power_of_2(x.shape[1]))
    _norm_row[(len(out),)](
        x,
        rows,
        norm.weight,
        norm.bias,
        out,
        x.stride(0),
        out.stride(0),
        norm.eps,
        factor,
        KIND=norm.kind,
        ADDS=adds,
        SIZE=x.shape[1],
        COLUMNS=columns,
        num_warps=min(16, max(1, columns // 512)),
    )


def rotate_heads(
    qkv: Tensor,  # [rows, heads * head_dim]
    positions: Tensor,  # [rows], int64
    queries: HeadRows,
    keys: HeadRows,
    *,
    head_dim: int,
    cosine: Tensor | None,  # [positions, pairs], float32
    sine: Tensor | None,
    is_interleaved: bool,
) -> None:
    """Norms the heads of queries and keys, then rotates their first pairs, in place.

    A pair is two neighbours where `is_interleaved`, else two elements as far apart as there are pairs.
    """
    assert qkv.stride(1) == 1, "elements of a row must lie together"
    pairs = head_dim // 2 if cosine is None else cosine.shape[1]
    blocks = [triton.cdiv(heads.count, HEADS_PER_PROGRAM) for heads in (queries, keys)]
    _rotate[(len(qkv), sum(blocks))](
        qkv,
        positions,
        cosine,
        sine,
        queries.norm.weight,
        queries.norm.bias,
        queries.norm.eps,
        keys.norm.weight,
        keys.norm.bias,
        keys.norm.eps,
        qkv.stride(0),
        QUERY_KIND=queries.norm.kind,
        KEY_KIND=keys.norm.kind,
        QUERY_WEIGHT_STRIDE=_weight_stride(queries, head_dim),
        KEY_WEIGHT_STRIDE=_weight_stride(keys, head_dim),
        QUERY_HEADS=queries.count,
        KEY_HEADS=keys.count,
        QUERY_BLOCKS=blocks[0],
        HEAD_DIM=head_dim,
        PAIRS=pairs,
        PAIRS_PADDED=triton.next_power_of_2(pairs),
        REST_PADDED=triton.next_power_of_2(max(1, head_dim - 2 * pairs)),
        STEP=2 if is_interleaved else 1,
        APART=1 if is_interleaved else pairs,
        HEADS=HEADS_PER_PROGRAM,
        num_warps=2,
    )


def activate(x: Tensor, activation: str, out: Tensor) -> None:
    """`act(x)` into `out` of the same shape; or, where `x` `[rows, 2 n]` is twice as wide, `act(gate) * up`.

    `activation` is one of `linears.interface.Activation`; the gate is the first half.
    """
    assert x.stride(1) == 1, "elements of a row must lie together"
    assert out.stride(1) == 1, "elements of a row must lie together"
    rows, size = out.shape
    assert x.shape in ((rows, size), (rows, 2 * size)), f"{tuple(x.shape)} does not become {tuple(out.shape)}"
    _activate[(rows, triton.cdiv(size, ACTIVATED_PER_PROGRAM))](
        x,
        out,
        x.stride(0),
        out.stride(0),
        SIZE=size,
        ACTIVATION=activation,
        IS_GATED=x.shape[1] != size,
        COLUMNS=ACTIVATED_PER_PROGRAM,
        num_warps=4,
    )


def _weight_stride(heads: HeadRows, head_dim: int) -> int:
    """The stride between the weights of two heads; 0 where they share theirs."""
    weight = heads.norm.weight
    return head_dim if weight is not None and weight.numel() > head_dim else 0


@triton.jit
def _norm_row(
    x,
    rows,
    weight,
    bias,
    out,
    stride_x,
    stride_out,
    eps,
    factor,
    KIND: tl.constexpr,
    ADDS: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = row
    if rows is not None:
        source = tl.load(rows + row)
    columns = tl.arange(0, COLUMNS)
    is_column = columns < SIZE
    y = tl.load(x + source * stride_x + columns, mask=is_column, other=0.0).to(tl.float32)
    if KIND == 2:
        y = tl.where(is_column, y - tl.sum(y, 0) / SIZE, 0.0)
    if KIND != 0:
        y = y * (1.0 / tl.sqrt(tl.sum(y * y, 0) / SIZE + eps))
    if weight is not None:
        y = y * tl.load(weight + columns, mask=is_column, other=0.0)
    if bias is not None:
        y = y + tl.load(bias + columns, mask=is_column, other=0.0)
    to = out + row * stride_out + columns
    if ADDS:
        y = tl.load(to, mask=is_column, other=0.0).to(tl.float32) + factor * y
    tl.store(to, y.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _rotate(
    qkv,
    positions,
    cosine,
    sine,
    query_weight,
    query_bias,
    query_eps,
    key_weight,
    key_bias,
    key_eps,
    stride_row,
    QUERY_KIND: tl.constexpr,
    KEY_KIND: tl.constexpr,
    QUERY_WEIGHT_STRIDE: tl.constexpr,
    KEY_WEIGHT_STRIDE: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    QUERY_BLOCKS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_PADDED: tl.constexpr,
    REST_PADDED: tl.constexpr,
    STEP: tl.constexpr,
    APART: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Some heads of queries, or of keys, of one row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = qkv + row * stride_row
    position = tl.load(positions + row)
    if block < QUERY_BLOCKS:
        _rotate_some(
            begin, position, cosine, sine, query_weight, query_bias, query_eps, block * HEADS,
            QUERY_KIND, QUERY_WEIGHT_STRIDE, QUERY_HEADS,
            HEAD_DIM, PAIRS, PAIRS_PADDED, REST_PADDED, STEP, APART, HEADS,
        )  # fmt: skip
    else:
        _rotate_some(
            begin + QUERY_HEADS * HEAD_DIM, position, cosine, sine, key_weight, key_bias, key_eps,
            (block - QUERY_BLOCKS) * HEADS,
            KEY_KIND, KEY_WEIGHT_STRIDE, KEY_HEADS,
            HEAD_DIM, PAIRS, PAIRS_PADDED, REST_PADDED, STEP, APART, HEADS,
        )  # fmt: skip


@triton.jit
def _rotate_some(
    begin,  # where the first head of the row lies
    position,
    cosine,
    sine,
    weight,
    bias,
    eps,
    first,
    KIND: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr,
    COUNT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_PADDED: tl.constexpr,
    REST_PADDED: tl.constexpr,
    STEP: tl.constexpr,
    APART: tl.constexpr,
    HEADS: tl.constexpr,
):
    heads = first + tl.arange(0, HEADS)
    pairs = tl.arange(0, PAIRS_PADDED)
    is_pair = (heads < COUNT)[:, None] & (pairs < PAIRS)[None, :]
    head_rows, weight_rows = heads[:, None] * HEAD_DIM, heads[:, None] * WEIGHT_STRIDE
    ones, others = (pairs * STEP)[None, :], (pairs * STEP + APART)[None, :]
    a = tl.load(begin + head_rows + ones, mask=is_pair, other=0.0).to(tl.float32)
    b = tl.load(begin + head_rows + others, mask=is_pair, other=0.0).to(tl.float32)
    rest = 2 * PAIRS + tl.arange(0, REST_PADDED)[None, :]
    is_rest = (heads < COUNT)[:, None] & (rest < HEAD_DIM)
    c = tl.load(begin + head_rows + rest, mask=is_rest, other=0.0).to(tl.float32)
    if KIND == 2:
        mean = ((tl.sum(a, 1) + tl.sum(b, 1) + tl.sum(c, 1)) / HEAD_DIM)[:, None]
        a = tl.where(is_pair, a - mean, 0.0)
        b = tl.where(is_pair, b - mean, 0.0)
        c = tl.where(is_rest, c - mean, 0.0)
    if KIND != 0:
        squares = tl.sum(a * a, 1) + tl.sum(b * b, 1) + tl.sum(c * c, 1)
        scale = (1.0 / tl.sqrt(squares / HEAD_DIM + eps))[:, None]
        a, b, c = a * scale, b * scale, c * scale
    if weight is not None:
        a = a * tl.load(weight + weight_rows + ones, mask=is_pair, other=0.0)
        b = b * tl.load(weight + weight_rows + others, mask=is_pair, other=0.0)
        c = c * tl.load(weight + weight_rows + rest, mask=is_rest, other=0.0)
    if bias is not None:
        a = a + tl.load(bias + weight_rows + ones, mask=is_pair, other=0.0)
        b = b + tl.load(bias + weight_rows + others, mask=is_pair, other=0.0)
        c = c + tl.load(bias + weight_rows + rest, mask=is_rest, other=0.0)
    if cosine is not None:
        where, is_known = position * PAIRS + pairs, pairs < PAIRS
        cos = tl.load(cosine + where, mask=is_known, other=0.0)[None, :]
        sin = tl.load(sine + where, mask=is_known, other=0.0)[None, :]
        rotated = a * cos - b * sin
        b = b * cos + a * sin
        a = rotated
    element = begin.dtype.element_ty
    tl.store(begin + head_rows + ones, a.to(element), mask=is_pair)
    tl.store(begin + head_rows + others, b.to(element), mask=is_pair)
    if KIND != 0:
        tl.store(begin + head_rows + rest, c.to(element), mask=is_rest)


@triton.jit
def _activate(
    x,
    out,
    stride_x,
    stride_out,
    SIZE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < SIZE
    given = x + row * stride_x + columns
    y = _activated(tl.load(given, mask=is_column, other=0.0).to(tl.float32), ACTIVATION)
    if IS_GATED:
        y = y * tl.load(given + SIZE, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + columns, y.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        y = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu_tanh":
        # tanh(z) is 2 sigmoid(2 z) - 1.
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_quick":
        y = x * tl.sigmoid(1.702 * x)
    elif ACTIVATION == "relu":
        y = tl.where(x < 0, 0.0, x)  # a NaN stays
    else:
        tl.static_assert(ACTIVATION == "relu_squared")
        y = tl.where(x < 0, 0.0, x)
        y = y * y
    return y
