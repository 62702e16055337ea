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

from .params import SamplingParams

TOP_P_CANDIDATES = (64, 1024)
"""How many likeliest tokens top_p looks at, one after the other; only if none suffices is all sorted."""

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


class Filters:
    """min_p, top_k and top_p, in this order, for the rows of one composition of a batch."""

    def __init__(self, params: Seq[SamplingParams], vocab_size: int, device: torch.device) -> None:
        limited = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
        self._top_k_max = max((k for k in limited if k < vocab_size), default=0)
        self._has_all_top_k = all(k < vocab_size for k in limited)
        self._top_k = torch.tensor(limited, device=device)[:, None]
        self._top_p = torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device)[:, None]
        self._min_p = torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device)[:, None]
        self._has_top_p = any(p.top_p < 1 for p in params)
        self._has_min_p = any(p.min_p > 0 for p in params)

    def apply(self, probs: Tensor) -> None:
        """Zero in `probs` `[rows, vocabulary]` what no filter lets pass. Ties with the last kept stay."""
        if self._has_min_p:
            probs.masked_fill_(probs < probs.amax(dim=-1, keepdim=True) * self._min_p, 0.0)
        top: Tensor | None = None
        if self._top_k_max:
            top = probs.topk(self._top_k_max, dim=-1).values
            kth = top.gather(1, self._top_k.clamp(max=self._top_k_max) - 1)
            kth = torch.where(self._top_k <= self._top_k_max, kth, 0.0)
            probs.masked_fill_(probs < kth, 0.0)
            # Beyond the k-th a row has only ties of it, which stay anyway: top_p need not look further.
            top = top.masked_fill(top < kth, 0.0) if self._has_all_top_k else None
        if self._has_top_p:
            probs.masked_fill_(probs < self._top_p_threshold(probs, top), 0.0)

    def _top_p_threshold(self, probs: Tensor, top: Tensor | None) -> Tensor:
        """The least probability in the smallest set of likeliest tokens that reaches top_p: `[rows, 1]`."""
        wanted = self._top_p * probs.sum(dim=-1, keepdim=True)
        if top is not None:
            threshold, _ = _reaching(top, wanted)
        elif probs.device.type != "cpu":  # to look whether some suffice would be to wait for the device
            threshold, _ = _reaching(probs.sort(dim=-1, descending=True).values, wanted)
        else:
            threshold = torch.zeros_like(wanted)
            left = (self._top_p[:, 0] < 1).nonzero()[:, 0]
            for count in (*TOP_P_CANDIDATES, probs.shape[-1]):
                if len(left) == 0:
                    break
                candidates = probs[left].topk(min(count, probs.shape[-1]), dim=-1).values
                found, reaches = _reaching(candidates, wanted[left])
                threshold[left] = found
                left = left[~reaches]
        return torch.where(self._top_p < 1, threshold, 0.0)


def _reaching(candidates: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The candidate at which the mass reaches `wanted` `[rows, 1]`, and whether there is one `[rows]`."""
    mass = candidates.cumsum(dim=-1)
    num_kept = ((mass - candidates) < wanted).sum(dim=-1, keepdim=True).clamp(min=1)
    return candidates.gather(1, num_kept - 1), mass[:, -1] >= wanted[:, 0]


def draw(probs: Tensor, numbers: NDArray[np.float64]) -> Tensor:
    """One token per row of `probs` `[rows, vocabulary]`, where its number in [0, 1) falls: `[rows]`.

    A number below 1 times a total stays below the total, so no draw points past the last possible token.
    """
    rows, vocab_size = probs.shape
    padded = torch.nn.functional.pad(probs, (0, -vocab_size % CHUNK)).view(rows, -1, CHUNK)
    masses = padded.sum(dim=-1).double()
    cdf = masses.cumsum(dim=-1)
    target = torch.from_numpy(numbers).to(probs.device)[:, None] * cdf[:, -1:]
    chunk = torch.searchsorted(cdf, target, right=True).clamp(max=cdf.shape[1] - 1)
    mass = masses.gather(1, chunk)
    # How far into the chunk, as a share of its mass: its sum here is another rounding of the one above.
    share = ((target - (cdf.gather(1, chunk) - mass)) / mass).clamp(0.0, 1 - 2**-53)
    inside = padded.gather(1, chunk[..., None].expand(-1, -1, CHUNK))[:, 0].double().cumsum(dim=-1)
    token = torch.searchsorted(inside, share * inside[:, -1:], right=True)
    return (chunk * CHUNK + token)[:, 0].clamp(max=vocab_size - 1)
