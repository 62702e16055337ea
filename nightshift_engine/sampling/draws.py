"""Random choices without a generator: a draw is a function of probabilities, seed and index, and no more.

`uniform` makes one number per draw, `draw` turns it into a token by the inverse of the cumulative
distribution, in vocabulary order. Each row is computed from that row alone, so company never matters.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 256
"""Tokens whose probabilities are summed before the cumulative sum: it is then 256 times shorter."""


def uniform(seeds: NDArray[np.uint64], indices: Seq[int]) -> NDArray[np.float64]:
    """Numbers in [0, 1), each a function of its seed and index only (two rounds of splitmix64).

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        bits = _splitmix64(_splitmix64(seeds) + np.array(indices, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seeds_column(seeds: Seq[int]) -> NDArray[np.uint64]:
    """Seeds of either sign as the 64 bits they are."""
    return np.array([seed & 2**64 - 1 for seed in seeds], dtype=np.uint64)


def _splitmix64(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def draw(probs: Tensor, numbers: Tensor) -> Tensor:
    """One token per row of `probs` `[rows, vocabulary]`, where its number in [0, 1) falls: `[rows]`.

    `numbers` `[rows]` are float64. A number below 1 times a total stays below the total, so no draw points
    past the last possible token.
    """
    vocab_size = probs.shape[1]
    masses = chunk_sums(probs).double()
    cdf = masses.cumsum(dim=-1)
    target = numbers[:, None] * cdf[:, -1:]
    chunk = torch.searchsorted(cdf, target, right=True).clamp(max=cdf.shape[1] - 1)
    mass = masses.gather(1, chunk)
    # How far into the chunk, as a share of its mass: its sum here is another rounding of the one above.
    share = ((target - (cdf.gather(1, chunk) - mass)) / mass).clamp(0.0, 1 - 2**-53)
    ids = chunk * CHUNK + torch.arange(CHUNK, device=probs.device)
    if vocab_size % CHUNK == 0:
        found = probs.gather(1, ids)
    else:
        found = probs.gather(1, ids.clamp(max=vocab_size - 1)).masked_fill(ids >= vocab_size, 0.0)
    return draw_among(ids, found.double(), share[:, 0]).clamp(max=vocab_size - 1)


def draw_among(ids: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
    """One of each row's tokens `ids`, ascending, by their `weights` `[rows, tokens]`, float64: `[rows]`."""
    cdf = weights.cumsum(dim=-1)
    at = torch.searchsorted(cdf, numbers[:, None] * cdf[:, -1:], right=True)
    return ids.gather(1, at.clamp(max=ids.shape[1] - 1))[:, 0]


def chunk_sums(probs: Tensor) -> Tensor:
    """Sums of each `CHUNK` tokens `[rows, chunks]`; the last chunk may be shorter."""
    body = probs.shape[1] - probs.shape[1] % CHUNK
    sums = probs[:, :body].view(len(probs), body // CHUNK, CHUNK).sum(dim=-1)
    if body == probs.shape[1]:
        return sums
    return torch.cat([sums, probs[:, body:].sum(dim=-1, keepdim=True)], dim=1)
