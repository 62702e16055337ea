"""Chooses each sequence's next token from its logits.

There is no generator and no state: the random number of a draw is a function of the sequence's seed and the
index of the output token, so a sequence that moves to another machine, or is recomputed, draws the same
again. A batch that is greedy throughout skips everything but the argmax.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from .batching.sequence import Sequence

TOP_P_CANDIDATES = 1024
"""How many likeliest tokens top_p looks at first; only if they do not suffice is all sorted."""

TEMPERATURE_MIN = 1e-30
"""Below it there is nothing left to draw from but the likeliest token; 1e-46 would be 0 in float32."""


class Sampler:
    """Picks tokens for rows of logits. Holds only what all requests share: the end-of-sequence ids."""

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)

    @torch.inference_mode()
    def sample(self, logits: Tensor, sequences: Seq[Sequence]) -> list[int | None]:
        """One token id per row of `logits` `[sequences, vocabulary]`, float32, which is overwritten.

        None where a row holds no usable number (NaN, or +inf): the model failed on that sequence.
        """
        if not sequences:
            return []
        self._adjust(logits, sequences)
        usable = torch.isfinite(logits.amax(dim=-1))  # now, so that no adjustment can make a token of a NaN
        tokens = logits.argmax(dim=-1)  # the lowest id wins a tie
        random_rows = [row for row, sequence in enumerate(sequences) if not sequence.sampling.is_greedy]
        if random_rows:
            chosen = logits[random_rows] if len(random_rows) < len(sequences) else logits
            tokens[random_rows] = _draw(chosen, usable[random_rows], [sequences[row] for row in random_rows])
        return [
            token if is_usable else None
            for token, is_usable in zip(tokens.tolist(), usable.tolist(), strict=True)
        ]

    def _adjust(self, logits: Tensor, sequences: Seq[Sequence]) -> None:
        """Bias, penalties and forbidden tokens: they move the argmax too, so they come before it."""
        for row, sequence in enumerate(sequences):
            sampling = sequence.sampling
            if sampling.has_penalties:
                _penalise(logits[row], sequence)
            if sampling.logit_bias:
                ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
                logits[row, ids] += torch.tensor(list(sampling.logit_bias.values()), device=logits.device)
            if sequence.num_output_tokens < sampling.min_tokens:
                logits[row, [*self._eos_token_ids, *sampling.stop_token_ids]] = float("-inf")


def uniform(seeds: Seq[int], indices: Seq[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Numbers in [0, 1), each a function of its seed and index only (two rounds of splitmix64)."""
    mask = 2**64 - 1
    with np.errstate(over="ignore"):
        state = _splitmix64(np.array([seed & mask for seed in seeds], dtype=np.uint64))
        bits = _splitmix64(state + np.array(indices, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(
    value: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _draw(logits: Tensor, usable: Tensor, sequences: Seq[Sequence]) -> Tensor:
    """Inverse-CDF draw over the filtered distribution, in vocabulary order: `[rows]`."""
    logits = torch.where(usable[:, None], logits, 0.0)
    params = [sequence.sampling for sequence in sequences]
    # From the largest down, so that dividing by next to nothing gives -inf and never inf or NaN.
    temperatures = _column([max(p.temperature, TEMPERATURE_MIN) for p in params], logits)
    probs = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / temperatures, dim=-1)
    if any(p.min_p > 0 for p in params):
        floor = probs.amax(dim=-1, keepdim=True) * _column([p.min_p for p in params], probs)
        probs = probs.masked_fill(probs < floor, 0.0)
    if any(p.top_k > 0 for p in params):
        probs = _keep_top_k(probs, [p.top_k for p in params])
    if any(p.top_p < 1 for p in params):
        probs = _keep_top_p(probs, [p.top_p for p in params])
    cdf = probs.cumsum(dim=-1, dtype=torch.float64)
    numbers = uniform([s.seed for s in sequences], [s.num_output_tokens for s in sequences])
    # A number below 1 times the total stays below the total: no draw points past the last possible token.
    target = torch.from_numpy(numbers).to(cdf.device)[:, None] * cdf[:, -1:]
    return torch.searchsorted(cdf, target, right=True)[:, 0]


def _keep_top_k(probs: Tensor, top_ks: list[int]) -> Tensor:
    """Zero what is less likely than the k-th likeliest token. Ties with it are kept."""
    vocabulary = probs.shape[-1]
    ks = [min(k, vocabulary) if k > 0 else vocabulary for k in top_ks]
    largest = max(k for k in ks if k < vocabulary) if min(ks) < vocabulary else 0
    if largest == 0:
        return probs
    top = probs.topk(largest, dim=-1).values
    kth = top.gather(1, torch.tensor([[min(k, largest) - 1] for k in ks], device=probs.device))
    kth[torch.tensor([k == vocabulary for k in ks], device=probs.device)] = 0.0
    return probs.masked_fill(probs < kth, 0.0)


def _keep_top_p(probs: Tensor, top_ps: list[float]) -> Tensor:
    """Zero all but the smallest set of likeliest tokens that reaches top_p, and ties with its last."""
    wanted = _column(top_ps, probs) * probs.sum(dim=-1, keepdim=True)
    candidates = probs.topk(min(TOP_P_CANDIDATES, probs.shape[-1]), dim=-1).values
    if bool((candidates.sum(dim=-1, keepdim=True) < wanted).any()):
        candidates = probs.sort(dim=-1, descending=True).values
    mass_before = candidates.cumsum(dim=-1) - candidates
    num_kept = (mass_before < wanted).sum(dim=-1, keepdim=True).clamp(min=1)
    threshold = candidates.gather(1, num_kept - 1)
    threshold[_column(top_ps, probs) >= 1] = 0.0
    return probs.masked_fill(probs < threshold, 0.0)


def _penalise(logits: Tensor, sequence: Sequence) -> None:
    """Repetition over prompt and output, frequency and presence over the output, in place: `[vocabulary]`."""
    sampling, counts = sequence.sampling, sequence.output_counts
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(list(sequence.prompt_token_set | counts.keys()), device=logits.device)
        values = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if counts:
        ids = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= sampling.frequency_penalty * times + sampling.presence_penalty


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
