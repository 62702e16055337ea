"""Device code for tiles of attention: load and store rows, walk over paged keys, carry a softmax on.

The query heads that share a KV head are rows of one tile, so each key and value is loaded once for all of
them. The softmax is online (arXiv 2205.14135) and its exponents are powers of two: maxima are in units of
log2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import IS_INTERPRETED

LOG2_E = tl.constexpr(1.4426950408889634)
DOT_IN_FLOAT32 = tl.constexpr(IS_INTERPRETED)
"""The interpreter cannot multiply matrices of bfloat16."""


@triton.jit
def load_rows(memory, rows, is_row, DIM: tl.constexpr, DIM_PADDED: tl.constexpr):
    """`DIM` numbers from each offset in `rows` on: `[rows, DIM_PADDED]`, zero where there is no row."""
    dims = tl.arange(0, DIM_PADDED)
    mask = is_row[:, None] & (dims < DIM)[None, :]
    return tl.load(memory + rows[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(memory, rows, numbers, is_row, DIM: tl.constexpr, DIM_PADDED: tl.constexpr):
    """Puts `numbers` `[rows, DIM_PADDED]` where `load_rows` would find them, in the memory's dtype."""
    dims = tl.arange(0, DIM_PADDED)
    mask = is_row[:, None] & (dims < DIM)[None, :]
    tl.store(memory + rows[:, None] + dims[None, :], numbers.to(memory.dtype.element_ty), mask=mask)


@triton.jit
def kv_rows(strides, blocks, kv_head, offsets):
    """The places of tokens in KV memory (or in its scales) with these strides of block, head and token."""
    return blocks * strides[0] + kv_head * strides[1] + offsets * strides[2]


@triton.jit
def new_softmax(sinks, heads, is_row, ROWS: tl.constexpr, VALUE_DIM_PADDED: tl.constexpr):
    """Maxima, denominators `[rows]` and weighted sums `[rows, value_dim]` of rows that have seen no key."""
    if sinks is not None:
        maximum = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        denominator = tl.full([ROWS], 1.0, tl.float32)
    else:
        maximum = tl.full([ROWS], float("-inf"), tl.float32)
        denominator = tl.zeros([ROWS], tl.float32)
    return maximum, denominator, tl.zeros([ROWS, VALUE_DIM_PADDED], tl.float32)


@triton.jit
def scan_keys(
    q,  # [rows, KEY_DIM_PADDED]
    positions,  # [rows]: each sees the keys up to its own
    maximum,  # with the next two: the softmax so far, as `new_softmax` starts it
    denominator,
    total,
    begin,
    stop,
    length,  # keys from here on do not exist
    table,  # the sequence's blocks
    kv,  # keys, values, their scales or None
    strides,  # of keys, values and scales: three of block, head, token
    kv_head,
    scale,
    softcap,  # or None
    window,  # or None
    KEY_DIM: tl.constexpr,
    KEY_DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The softmax after the keys in `[begin, stop)`, `COLUMNS` of them at a time."""
    keys, values, key_scales, value_scales = kv
    key_strides, value_strides, scale_strides = strides
    for first in range(begin, stop, COLUMNS):
        tokens = first + tl.arange(0, COLUMNS)
        is_known = tokens < length
        blocks = tl.load(table + tokens // BLOCK_SIZE, mask=is_known, other=0).to(tl.int64)
        offsets = tokens % BLOCK_SIZE
        scale_rows = kv_rows(scale_strides, blocks, kv_head, offsets)
        k, k_scale = _load_scaled(
            keys, kv_rows(key_strides, blocks, kv_head, offsets), key_scales, scale_rows, is_known,
            KEY_DIM, KEY_DIM_PADDED,
        )  # fmt: skip
        v, v_scale = _load_scaled(
            values, kv_rows(value_strides, blocks, kv_head, offsets), value_scales, scale_rows, is_known,
            VALUE_DIM, VALUE_DIM_PADDED,
        )  # fmt: skip
        scores = dot(q, tl.trans(k.to(q.dtype))) * scale
        if key_scales is not None:
            scores = scores * k_scale[None, :]
        if softcap is not None:
            scores = _softcapped(scores, softcap)
        is_seen = is_known[None, :] & (tokens[None, :] <= positions[:, None])
        if window is not None:
            is_seen = is_seen & (tokens[None, :] > positions[:, None] - window)
        scores = tl.where(is_seen, scores * LOG2_E, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # A row that has seen nothing yet keeps -inf; subtracting 0 instead of it avoids a NaN.
        anchor = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - anchor[:, None])
        fading = tl.exp2(maximum - anchor)
        maximum = new_maximum
        denominator = denominator * fading + tl.sum(weights, 1)
        if value_scales is not None:
            weights = weights * v_scale[None, :]
        total = total * fading[:, None] + dot(weights.to(q.dtype), v.to(q.dtype))
    return maximum, denominator, total


@triton.jit
def _load_scaled(
    memory, rows, scales, scale_rows, is_known, DIM: tl.constexpr, DIM_PADDED: tl.constexpr
):  # fmt: skip
    """Keys or values of some tokens `[tokens, dim]`, zero where not known, and their scales `[tokens]`."""
    tile = load_rows(memory, rows, is_known, DIM, DIM_PADDED)
    if scales is not None:
        scale = tl.load(scales + scale_rows, mask=is_known, other=0.0)
        tile = tile.to(tl.float32)  # the interpreter has no way from int8 to bfloat16 but this one
    else:
        scale = tl.full(is_known.shape, 1.0, tl.float32)
    return tile, scale


@triton.jit
def dot(a, b):
    if DOT_IN_FLOAT32:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _softcapped(scores, cap):
    """cap * tanh(scores / cap), by exp2: there is no tanh in the interpreter."""
    return cap * (1.0 - 2.0 / (tl.exp2(scores / cap * (2 * LOG2_E)) + 1.0))
