"""Triton kernels that draw tokens from rows of logits, and sum their exponentials.

A row is read once by `sum_chunks`, twice by `find_cuts` and once more by `sum_chunks` where a filter drops
some of its tokens; without a filter it is read once in all. The passes of `find_cuts` narrow down where the
last kept token lies: the first weighs the tokens above a few thresholds, the second lists those between two
of them, which are few and stay in cache. One program has a row (`find_cuts`, `draw_rows`) or some chunks of
one, so nothing depends on the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED
from .tile import LOG2_E

CHUNK = 256
"""Tokens whose exponentials are summed first: a row of 151,936 has 594 such sums."""
CHUNKS_PER_PROGRAM = 32
ROWS, COLUMNS = (4, 64) if IS_INTERPRETED else (16, 256)
"""Tile of tokens that a program of `find_cuts` takes at once; two such programs fit a multiprocessor."""
THRESHOLDS = 8
WAYS = tl.constexpr(16)
"""Thresholds of each step of the search among listed tokens: four more bits of the one that is wanted."""
TEMPERATURE_MAX = tl.constexpr(1e30)
"""Hotter than this changes nothing; an infinite float32 would make NaN of a token that may not come."""
ORDER_MASK = tl.constexpr(0x7FFFFFFF)
LEAST_ORDER = tl.constexpr(-0x7F800001)
"""The order of minus infinity among float32."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Some rows of logits, and how their tokens are drawn."""

    logits: Tensor  # [all rows, vocabulary], float32
    rows: Tensor  # [rows], int64: which of them
    params: Tensor  # [4, rows], float64: temperature, top_k (the vocabulary's size: all), top_p, min_p
    numbers: Tensor  # [rows], float64, in [0, 1)


@dataclass(frozen=True, slots=True)
class Cuts:
    """The end of what filters keep of each row: tokens above `values`, and of equals those up to `ids`."""

    values: Tensor  # [rows], float32
    ids: Tensor  # [rows], int32


@dataclass(frozen=True, slots=True)
class Chunks:
    """The largest logit of each chunk of each row, and the sum of exp(logit - largest) at its temperature."""

    maxima: Tensor  # [rows, chunks], float32
    sums: Tensor  # [rows, chunks], float32, without tokens that are cut


def draw_tokens(draws: Draws, *, are_filtered: bool) -> tuple[Tensor, Tensor]:
    """A token of each row, int64 `[rows]`, and whether the row holds usable numbers.

    `are_filtered`: whether top_k, top_p or min_p of any row keep less than all.
    """
    chunks, cuts = sum_chunks(draws.logits, draws.rows, draws.params), None
    if are_filtered:
        cuts = find_cuts(draws, chunks)
        chunks = sum_chunks(draws.logits, draws.rows, draws.params, cuts)
    count, device = len(draws.rows), draws.logits.device
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    usable = torch.empty(count, dtype=torch.bool, device=device)
    _draw_row[(count,)](
        *_row_arguments(draws.logits, draws.rows, draws.params),
        draws.numbers,
        *_chunk_arguments(chunks),
        *_cut_arguments(cuts),
        tokens,
        usable,
        CHUNK=CHUNK,
        CHUNKS_PADDED=triton.next_power_of_2(chunks.sums.shape[1]),
        num_warps=4,
    )
    return tokens, usable


def log_sums(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row, and the log of the sum of exp(logit - largest): `[rows, 1]` each."""
    chunks = sum_chunks(logits)
    largest = chunks.maxima.amax(dim=1, keepdim=True)
    masses = chunks.sums.double() * torch.exp((chunks.maxima - largest).double())
    return largest, masses.sum(dim=1, keepdim=True).log().float()


def compile_all(vocab_size: int, device: torch.device) -> None:
    """Runs every kernel once, for logits of this width: no step is to wait for a compiler."""
    logits, params = torch.zeros(1, vocab_size, device=device), torch.ones(4, 1, dtype=torch.float64)
    row, number = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.float64)
    draws = Draws(logits, row, params.to(device), number.to(device))
    for are_filtered in (False, True):
        draw_tokens(draws, are_filtered=are_filtered)
    log_sums(logits)


def sum_chunks(
    logits: Tensor, rows: Tensor | None = None, params: Tensor | None = None, cuts: Cuts | None = None
) -> Chunks:
    """Chunks of all rows of `logits` or of those given, at their temperatures or at 1."""
    count = len(logits) if rows is None else len(rows)
    num_chunks = triton.cdiv(logits.shape[1], CHUNK)
    chunks = Chunks(*(logits.new_empty(count, num_chunks) for _ in range(2)))
    _sum_chunks[(count, triton.cdiv(num_chunks, CHUNKS_PER_PROGRAM))](
        *_row_arguments(logits, rows, params),
        *_chunk_arguments(chunks),
        *_cut_arguments(cuts),
        CHUNK=CHUNK,
        CHUNKS=CHUNKS_PER_PROGRAM,
        num_warps=8,
    )
    return chunks


def find_cuts(draws: Draws, chunks: Chunks) -> Cuts:
    """The ends that top_k, top_p and min_p put to each row's ranking, as `sampling.filters` defines it.

    `chunks` are those of all tokens.
    """
    count, vocab_size = len(draws.rows), draws.logits.shape[1]
    device = draws.logits.device
    cuts = Cuts(
        torch.empty(count, dtype=torch.float32, device=device),
        torch.empty(count, dtype=torch.int32, device=device),
    )
    _find_cut[(count,)](
        *_row_arguments(draws.logits, draws.rows, draws.params),
        *_chunk_arguments(chunks),
        *_cut_arguments(cuts),
        torch.empty(count, vocab_size, dtype=torch.int32, device=device),
        CHUNKS_PADDED=triton.next_power_of_2(chunks.sums.shape[1]),
        THRESHOLDS=THRESHOLDS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=8,
    )
    return cuts


def _row_arguments(
    logits: Tensor, rows: Tensor | None, params: Tensor | None
) -> tuple[Tensor | int | None, ...]:
    assert logits.stride(1) == 1, "a row's logits must lie together"
    assert params is None or params.stride(1) == 1, "a parameter's values must lie together"
    stride_param = 0 if params is None else params.stride(0)
    return logits, rows, logits.stride(0), logits.shape[1], params, stride_param


def _chunk_arguments(chunks: Chunks) -> tuple[Tensor | int, ...]:
    return chunks.maxima, chunks.sums, chunks.sums.shape[1]


def _cut_arguments(cuts: Cuts | None) -> tuple[Tensor | None, ...]:
    return (None, None) if cuts is None else (cuts.values, cuts.ids)


@triton.jit(
    do_not_specialize=["stride_param"],
    do_not_specialize_on_alignment=["rows", "params", "cut_values", "cut_ids"],
)
def _sum_chunks(
    logits, rows, stride_row, vocab_size, params, stride_param, maxima, sums, num_chunks, cut_values, cut_ids,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Some chunks of one row."""
    at = tl.program_id(0)
    chunks = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    ids = chunks[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    x = tl.load(_row(logits, rows, stride_row, at) + ids, mask=ids < vocab_size, other=float("-inf"))
    largest = tl.max(x, 1)
    anchors = tl.where(largest == float("-inf"), 0.0, largest)  # no NaN of tokens that may not come
    weights = tl.exp2((x - anchors[:, None]) * _scale(params, at))
    if cut_values is not None:
        weights = _without_cut(weights, x, ids, cut_values, cut_ids, at)
    to = at.to(tl.int64) * num_chunks + chunks
    tl.store(maxima + to, largest, mask=chunks < num_chunks)
    tl.store(sums + to, tl.sum(weights, 1), mask=chunks < num_chunks)


@triton.jit(
    do_not_specialize=["stride_param"],
    do_not_specialize_on_alignment=["rows", "params", "numbers", "cut_values", "cut_ids", "tokens", "usable"],
)
def _draw_row(
    logits, rows, stride_row, vocab_size, params, stride_param, numbers, maxima, sums, num_chunks,
    cut_values, cut_ids, tokens, usable, CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """The token of one row in which its number falls: first its chunk, then its place there."""
    at = tl.program_id(0)
    scale = _scale(params, at)
    largest_of_chunks, _, masses = _weigh_chunks(maxima, sums, num_chunks, scale, at, CHUNKS_PADDED)
    largest, total = tl.max(largest_of_chunks, 0), tl.sum(masses, 0)
    is_usable = (largest > float("-inf")) & (largest < float("inf")) & (total == total)
    chunk, share = _pick(masses, tl.load(numbers + at), CHUNKS_PADDED)
    anchor = tl.sum(tl.where(tl.arange(0, CHUNKS_PADDED) == chunk, largest_of_chunks, 0.0), 0)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(_row(logits, rows, stride_row, at) + ids, mask=ids < vocab_size, other=float("-inf"))
    weights = tl.exp2((x - anchor) * scale)
    if cut_values is not None:
        weights = _without_cut(weights, x, ids, cut_values, cut_ids, at)
    place, _ = _pick(weights.to(tl.float64), share, CHUNK)
    tl.store(tokens + at, tl.minimum(chunk * CHUNK + place, vocab_size - 1).to(tl.int64))
    tl.store(usable + at, is_usable)


@triton.jit
def _pick(weights, number, SIZE: tl.constexpr):
    """The place among `weights` `[SIZE]`, float64, where `number` in [0, 1] falls, and how far into it."""
    places = tl.arange(0, SIZE)
    ends = tl.cumsum(weights, 0)
    target = number * tl.max(ends, 0)
    is_possible = weights > 0.0
    place = tl.min(tl.where(is_possible & (ends > target), places, SIZE), 0)
    place = tl.minimum(place, tl.max(tl.where(is_possible, places, 0), 0))
    mass = tl.sum(tl.where(places == place, weights, 0.0), 0)
    begin = tl.sum(tl.where(places == place, ends, 0.0), 0) - mass
    return place, tl.maximum((target - begin) / mass, 0.0)


@triton.jit(
    do_not_specialize=["stride_param"],
    do_not_specialize_on_alignment=["rows", "params", "cut_values", "cut_ids"],
)
def _find_cut(
    logits, rows, stride_row, vocab_size, params, stride_param, maxima, sums, num_chunks, cut_values, cut_ids,
    listed_ids,  # [rows, vocabulary], int32: room for the tokens that a program lists
    CHUNKS_PADDED: tl.constexpr, THRESHOLDS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The cut of one row."""
    at = tl.program_id(0)
    row = _row(logits, rows, stride_row, at)
    listed = listed_ids + at.to(tl.int64) * vocab_size
    temperature, scale = tl.minimum(tl.load(params + at), TEMPERATURE_MAX), _scale(params, at)
    top_k = tl.load(params + stride_param + at)
    top_p = tl.load(params + 2 * stride_param + at)
    min_p = tl.load(params + 3 * stride_param + at)
    largest_of_chunks, is_finite, masses = _weigh_chunks(maxima, sums, num_chunks, scale, at, CHUNKS_PADDED)
    largest = tl.max(largest_of_chunks, 0)
    least = tl.full([], float("-inf"), tl.float32)
    if min_p > 0.0:
        least = (largest + temperature * tl.log(min_p)).to(tl.float32)
    value, last = least, vocab_size
    has_top_k, has_top_p = top_k < vocab_size, top_p < 1.0
    if has_top_k | has_top_p:
        # Any thresholds will do; these mostly lie about the end of what is kept.
        low = tl.full([], float("inf"), tl.float32)
        if has_top_p:  # all tokens less likely than this weigh less, together, than what may be dropped
            share = (1.0 - top_p) * tl.sum(masses, 0) / vocab_size
            low = (largest + temperature * tl.log(share)).to(tl.float32)
        if has_top_k:  # as many tokens as there are chunks lie above the smallest maximum
            smallest = tl.min(tl.where(is_finite, largest_of_chunks, float("inf")), 0)
            if top_k > tl.sum(is_finite.to(tl.int32), 0):
                smallest = 2.0 * smallest - largest
            low = tl.minimum(low, smallest)
        steps = tl.arange(0, THRESHOLDS)
        thresholds = low + (largest - low) * ((steps - 1) / (THRESHOLDS - 1))
        thresholds = tl.where(steps == 0, float("-inf"), thresholds)
        counts, weights = _weigh(
            row, None, vocab_size, thresholds, least, largest, scale, THRESHOLDS, ROWS, COLUMNS
        )
        lo, hi, total = _bracket(thresholds, counts, weights, has_top_k, has_top_p, top_k, top_p)
        num_listed = _list_tokens(row, listed, vocab_size, lo, hi, ROWS * COLUMNS)
        is_above = thresholds >= hi
        count_above = tl.max(tl.where(is_above, counts, 0), 0)
        mass_above = tl.max(tl.where(is_above, weights, 0.0), 0)
        if has_top_k:
            k_value, k_last, total = _search(
                row, listed, num_listed, count_above, mass_above, top_k, False, least, largest, scale,
                ROWS, COLUMNS,
            )  # fmt: skip
            value, last = _shorter(value, last, k_value, k_last)
        if has_top_p:
            p_value, p_last, total = _search(
                row, listed, num_listed, count_above, mass_above, top_p * total, True, least, largest, scale,
                ROWS, COLUMNS,
            )  # fmt: skip
            value, last = _shorter(value, last, p_value, p_last)
    tl.store(cut_values + at, value)
    tl.store(cut_ids + at, last)


@triton.jit
def _weigh(
    row,
    listed,  # ids of tokens, or None: the first `count`
    count, thresholds,
    least,  # tokens below weigh nothing
    largest, scale, THRESHOLDS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The number of tokens that reach each of `thresholds`, int32, and their mass, float64."""
    counts = tl.zeros([THRESHOLDS, COLUMNS], tl.int32)
    masses = tl.zeros([THRESHOLDS, COLUMNS], tl.float64)
    for start in range(0, count, ROWS * COLUMNS):
        places = start + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        x = _load(row, listed, places, count)
        weights = tl.where(x >= least, tl.exp2((x - largest) * scale), 0.0)
        is_reached = x[None, :, :] >= thresholds[:, None, None]
        counts += tl.sum(is_reached.to(tl.int32), 1)
        masses += tl.sum(tl.where(is_reached, weights[None, :, :], 0.0), 1).to(tl.float64)
    return tl.sum(counts, 1), tl.sum(masses, 1)


@triton.jit
def _bracket(thresholds, counts, masses, has_top_k, has_top_p, top_k, top_p):
    """Two of `thresholds` between which top_k and top_p end, and the mass of all tokens."""
    total = tl.max(masses, 0)
    is_k = counts >= top_k
    lo = tl.max(tl.where(is_k, thresholds, float("-inf")), 0)
    hi = tl.min(tl.where(is_k, float("inf"), thresholds), 0)
    if has_top_p:
        # The mass that top_k leaves lies between these; sums in another order differ by less than the margin.
        most = tl.where(has_top_k, tl.min(tl.where(is_k, masses, total), 0), total) * (1.0 + 1e-6)
        fewest = tl.where(has_top_k, tl.max(tl.where(is_k, 0.0, masses), 0), total) * (1.0 - 1e-6)
        reach = tl.max(tl.where(masses >= top_p * most, thresholds, float("-inf")), 0)
        lo = tl.where(has_top_k, tl.minimum(lo, reach), reach)
        hi = tl.min(tl.where(masses < top_p * fewest, thresholds, float("inf")), 0)
    return lo, hi, total


@triton.jit
def _list_tokens(row, listed, vocab_size, lo, hi, BLOCK: tl.constexpr):
    """Writes the ids of tokens in `[lo, hi)` to `listed`, ascending; returns how many there are."""
    count = tl.full([], 0, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = _load(row, None, ids, vocab_size)
        is_listed = (x >= lo) & (x < hi) & (x > float("-inf"))
        places = count + tl.cumsum(is_listed.to(tl.int32), 0) - 1
        tl.store(listed + places, ids, mask=is_listed)
        count += tl.sum(is_listed.to(tl.int32), 0)
    tl.debug_barrier()  # other threads of the program read them
    return count


@triton.jit
def _search(
    row, listed, num_listed, count_above, mass_above, wanted, BY_MASS: tl.constexpr, least, largest, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The largest logit from which on tokens are `wanted`, by count or mass, those above the list included.

    Returns it, the last id of those equal to it that are needed, and the mass of all that are.
    """
    order = tl.full([], -0x80000000, tl.int32)
    for step in range(8):
        orders = order + (tl.arange(0, WAYS) << (28 - 4 * step))
        counts, masses = _weigh(
            row, listed, num_listed, _of_order(orders), least, largest, scale, WAYS, ROWS, COLUMNS
        )
        reached = masses + mass_above if BY_MASS else (counts + count_above).to(tl.float64)
        order = tl.max(tl.where(reached >= wanted, orders, order), 0)
    value = _of_order(tl.maximum(order, LEAST_ORDER))
    for start in range(0, num_listed, ROWS * COLUMNS):
        x = _load(row, listed, start + tl.arange(0, ROWS * COLUMNS), num_listed)
        is_above = x > value
        weights = tl.where(is_above & (x >= least), tl.exp2((x - largest) * scale), 0.0)
        count_above += tl.sum(is_above.to(tl.int32), 0)
        mass_above += tl.sum(weights.to(tl.float64), 0)
    weight = tl.where(value >= least, tl.exp2((value - largest) * scale), 0.0).to(tl.float64)
    missing = (wanted - mass_above) / weight if BY_MASS else wanted - count_above
    num_wanted = tl.ceil(tl.minimum(missing, 1e9)).to(tl.int32)
    last, seen = tl.full([], -1, tl.int32), tl.full([], 0, tl.int32)
    for start in range(0, num_listed, ROWS * COLUMNS):
        places = start + tl.arange(0, ROWS * COLUMNS)
        is_equal = _load(row, listed, places, num_listed) == value
        ranks = seen + tl.cumsum(is_equal.to(tl.int32), 0)
        ids = tl.load(listed + places, mask=is_equal & (ranks <= num_wanted), other=-1)
        last = tl.maximum(last, tl.max(ids, 0))
        seen += tl.sum(is_equal.to(tl.int32), 0)
    return value, last, mass_above + tl.minimum(num_wanted, seen) * weight


@triton.jit
def _shorter(value, last, other_value, other_last):
    """The one of two cuts that leaves fewer tokens."""
    is_other = (other_value > value) | ((other_value == value) & (other_last < last))
    return tl.where(is_other, other_value, value), tl.where(is_other, other_last, last)


@triton.jit
def _weigh_chunks(maxima, sums, num_chunks, scale, at, CHUNKS_PADDED: tl.constexpr):
    """The largest logit of each chunk, whether there is one, and its mass: float64, of the likeliest is 1."""
    chunks = tl.arange(0, CHUNKS_PADDED)
    where = at.to(tl.int64) * num_chunks + chunks
    largest = tl.load(maxima + where, mask=chunks < num_chunks, other=float("-inf"))
    total = tl.load(sums + where, mask=chunks < num_chunks, other=0.0).to(tl.float64)
    is_finite = largest > float("-inf")
    fading = tl.where(is_finite, tl.exp2((largest - tl.max(largest, 0)) * scale), 1.0)
    return largest, is_finite, total * fading


@triton.jit
def _load(row, listed, places, count):
    """Logits of the tokens at `places`; NaN, which reaches no threshold, from `count` on."""
    is_there = places < count
    if listed is not None:
        return tl.load(
            row + tl.load(listed + places, mask=is_there, other=0), mask=is_there, other=float("nan")
        )
    return tl.load(row + places, mask=is_there, other=float("nan"))


@triton.jit
def _row(logits, rows, stride_row, at):
    """The first logit of the row at this place."""
    row = at.to(tl.int64)
    if rows is not None:
        row = tl.load(rows + at)
    return logits + row * stride_row


@triton.jit
def _scale(params, at):
    """The factor of differences between logits, in units of log2."""
    scale = LOG2_E
    if params is not None:
        scale = LOG2_E / tl.minimum(tl.load(params + at), TEMPERATURE_MAX).to(tl.float32)
    return scale


@triton.jit
def _without_cut(weights, x, ids, cut_values, cut_ids, at):
    """`weights` without those of tokens that are cut; that of a NaN stays, so that it shows."""
    value, last = tl.load(cut_values + at), tl.load(cut_ids + at)
    return tl.where((x < value) | ((x == value) & (ids > last)), 0.0, weights)


@triton.jit
def _of_order(orders):
    """The float32 that have these orders among them."""
    return (orders ^ ((orders >> 31) & ORDER_MASK)).to(tl.float32, bitcast=True)
