"""The tokens that top_k and top_p keep, found without sorting the vocabulary.

Tokens are ranked by their logits, the likeliest first, of equals the lowest id. top_k keeps the first k.
top_p keeps the shortest beginning of the ranking whose probabilities sum up to p of the whole: a token is
kept if those before it do not reach p. However a beginning is found, it is the same one. On a CUDA device
with our Triton kernels, `kernels/triton/sampling.py` finds it, and draws.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUCKET_BITS = 12
"""Leading bits of a logit (sign, exponent, three of the mantissa) by which the CPU divides a vocabulary."""

_MAGNITUDE = 0x7FFFFFFF
_LEAST = -0x7F800001
"""The order of minus infinity among logits."""


def may_look(values: Tensor) -> bool:
    """Whether what to do next may depend on `values`: only on a CPU need the host not wait for them."""
    return values.device.type == "cpu"


def likeliest(logits: Tensor, count: int) -> Tensor:
    """The first `count` tokens of each row's ranking, in its order: `[rows, count]`."""
    vocab_size = logits.shape[1]
    size = 1 << max(0, round(math.log2(vocab_size / count) / 2))  # as many chunks as candidates in them
    maxima = _chunk_maxima(logits, size)
    numbers = torch.arange(maxima.shape[1], device=logits.device).expand_as(maxima)
    chunks = _first(maxima, numbers, min(count, maxima.shape[1]))
    ids = (chunks[..., None] * size + torch.arange(size, device=logits.device)).flatten(1)
    values = logits.gather(1, ids.clamp(max=vocab_size - 1)).masked_fill(ids >= vocab_size, float("-inf"))
    return _first(values, ids, count).clamp(max=vocab_size - 1)  # beyond are those of a row that holds NaN


def is_within(weights: Tensor, wanted: Tensor) -> Tensor:
    """Whether each of ranked tokens, of `weights` `[rows, tokens]`, is taken to weigh `wanted` `[rows, 1]`.

    Both float64.
    """
    return (weights.cumsum(dim=-1) - weights) < wanted


def beginning(logits: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The shortest beginning of each row's ranking that weighs `wanted` `[rows, 1]`, as a mask of `logits`.

    `weights` are as `logits`, or `[1, 1]` for all alike; they are summed in float64, as `wanted` is.
    """
    weights = weights.expand_as(logits)
    if not may_look(logits):
        return _beginning_by_bisection(logits, weights, wanted)
    rows = zip(logits.numpy(), weights.numpy(), wanted[:, 0].tolist(), strict=True)
    return torch.from_numpy(np.stack([_beginning_of_row(*row) for row in rows]))


def _beginning_by_bisection(logits: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """Bit by bit, the largest logit from which on a row weighs enough. Nothing is read from the device."""
    nothing = weights.new_zeros(())

    def mass(kept: Tensor) -> Tensor:
        return torch.where(kept, weights, nothing).sum(dim=-1, keepdim=True, dtype=torch.float64)

    order = torch.full((len(logits), 1), -(2**31), dtype=torch.int64, device=logits.device)
    for bit in reversed(range(32)):
        higher = order + 2**bit
        order = torch.where(mass(logits >= _of_order(higher)) >= wanted, higher, order)
    threshold = _of_order(order.clamp(min=_LEAST))
    above, ties = logits > threshold, logits == threshold
    weight = torch.where(ties, weights, nothing).amax(dim=-1, keepdim=True).double()
    before = mass(above) + (ties.cumsum(dim=-1, dtype=torch.int32) - 1) * weight
    return above | (ties & (before < wanted))


def _beginning_of_row(
    logits: NDArray[np.float32], weights: NDArray[np.float32], wanted: float
) -> NDArray[np.bool_]:
    """Weighs the buckets of similar logits, then ranks within the one where the mass is reached."""
    logits = logits + np.float32(0.0)  # minus zero becomes zero, which it equals
    bits = logits.view(np.int32)
    order = bits ^ ((bits >> 31) & _MAGNITUDE)
    buckets = (order >> (32 - BUCKET_BITS)) + 2 ** (BUCKET_BITS - 1)
    masses = np.bincount(buckets, weights, minlength=2**BUCKET_BITS)[::-1].cumsum()  # from the top
    last = min(int(np.searchsorted(masses, wanted)), len(masses) - 1)
    bucket = len(masses) - 1 - last
    kept: NDArray[np.bool_] = buckets > bucket
    ids = np.flatnonzero(buckets == bucket)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    inside = weights[ids].astype(np.float64)
    kept[ids[inside.cumsum() - inside + (masses[last - 1] if last else 0.0) < wanted]] = True
    return kept


def _first(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """The `ids` of the first `count` by `values`, both `[rows, tokens]`; of equals the lowest id first."""
    ranks = _order(values) * 2**32 - ids
    return ids.gather(1, ranks.topk(count, dim=-1).indices)


def _order(values: Tensor) -> Tensor:
    """Integers that are ordered as the float32 `values` are."""
    bits = (values + 0.0).view(torch.int32)  # minus zero becomes zero, which it equals
    return (bits ^ ((bits >> 31) & _MAGNITUDE)).long()


def _of_order(order: Tensor) -> Tensor:
    """The float32 that has this order; the inverse of `_order`."""
    bits = order.to(torch.int32)
    return (bits ^ ((bits >> 31) & _MAGNITUDE)).view(torch.float32)


def _chunk_maxima(logits: Tensor, size: int) -> Tensor:
    """The largest logit of each `size` tokens `[rows, chunks]`; the last chunk may be shorter."""
    body = logits.shape[1] - logits.shape[1] % size
    maxima = logits[:, :body].view(len(logits), body // size, size).amax(dim=-1)
    if body == logits.shape[1]:
        return maxima
    return torch.cat([maxima, logits[:, body:].amax(dim=-1, keepdim=True)], dim=1)
