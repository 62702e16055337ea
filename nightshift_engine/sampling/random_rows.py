"""Rows of a batch that draw their tokens by their own parameters: equal ways are computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.sampling_params import SamplingParams
from ..core.sequence import SampledRow
from ..execution.attention.selection import has_triton_kernels
from .filters import beginning, is_within, likeliest, may_look

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
    """One token per row of `probs`, where its number in [0, 1) falls; never an impossible one."""
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
        chosen = probs.gather(1, ids)
    else:
        chosen = probs.gather(1, ids.clamp(max=vocab_size - 1)).masked_fill(ids >= vocab_size, 0.0)
    return draw_among(ids, chosen.double(), share[:, 0]).clamp(max=vocab_size - 1)


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


TEMPERATURE_MIN = 1e-5
"""Colder than this is greedy, as in vLLM: the softmax has nothing left but the likeliest token."""

TEMPERATURE_MAX = 1e30
"""Hotter than this changes nothing: an infinite float32 would make NaN of a token that may not come."""

TOP_K_SMALL = 1024
"""Rows that keep this many tokens or fewer are computed from these alone."""

TOP_P_TRIED = 64
"""A CPU looks first whether so many of the likeliest tokens reach top_p."""

CPU_LOGITS_AT_ONCE = 2**19
"""A CPU takes so many rows at once as have this many logits: what lies beside them then fits its cache."""


def is_random(params: SamplingParams) -> bool:
    """Whether the token is drawn; else it is the likeliest."""
    return params.temperature >= TEMPERATURE_MIN


@dataclass(frozen=True, slots=True)
class _Columns:
    """Parameters of some rows, each `[rows, 1]`, float64."""

    temperature: Tensor
    top_k: Tensor
    """The vocabulary's size where all tokens are kept."""
    top_p: Tensor
    min_p: Tensor
    number: Tensor
    """Number of the draw, in [0, 1)."""

    def of_rows(self, rows: slice | Tensor) -> _Columns:
        return _Columns(*(getattr(self, name)[rows] for name in self.__slots__))

    def wanted(self, mass: Tensor) -> Tensor:
        """Weight that the kept tokens must have of `mass`; infinite, so all are kept, without top_p."""
        return torch.where(self.top_p < 1, self.top_p * mass, float("inf"))


_Draw = Callable[[Tensor, _Columns, list[SamplingParams]], Tensor]
"""Tokens of some rows of logits `[rows, vocabulary]`, given their parameters on the device and here."""


class RandomRows:
    """The rows of one composition of a batch whose tokens are drawn."""

    def __init__(self, sequences: Seq[SampledRow], vocab_size: int) -> None:
        random = [(row, s) for row, s in enumerate(sequences) if is_random(s.sampling)]
        random.sort(key=lambda row: _WAYS.index(_way(row[1].sampling, vocab_size)))
        self.rows = [row for row, _ in random]
        """Rows of the logits, in the order in which they are drawn here."""
        self._vocab_size = vocab_size
        self._sequences = [sequence for _, sequence in random]
        self._params = [sequence.sampling for sequence in self._sequences]
        self._ways = [_way(params, vocab_size) for params in self._params]
        self.are_all = self.rows == list(range(len(sequences)))
        """Whether the logits have no other rows, and in this order."""
        self._seeds = seeds_column([sequence.seed for sequence in self._sequences])

    def __len__(self) -> int:
        return len(self.rows)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that stay the same, for `draw`."""
        if not self.rows:
            return {}
        limits = [_top_k(params, self._vocab_size) for params in self._params]
        values = [
            (params.temperature, top_k, params.top_p, params.min_p)
            for params, top_k in zip(self._params, limits, strict=True)
        ]
        return {
            "random_rows": np.array(self.rows, dtype=np.int64),
            "random_params": np.array(values, dtype=np.float64).T[..., None],
        }

    def step_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that a step needs besides: the number of each draw."""
        if not self.rows:
            return {}
        indices = [sequence.next_output_index for sequence in self._sequences]
        return {"random_numbers": uniform(self._seeds, indices)}

    def draw(self, logits: Tensor, columns: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """A token for each of `rows`, and whether the row holds usable numbers: `[random rows]` each.

        `logits` are those of the whole batch, float32, and are left as they are.
        """
        if has_triton_kernels(logits.device):
            return self._draw_by_kernels(logits, columns)
        temperature, top_k, top_p, min_p = columns["random_params"].unbind()
        every = _Columns(temperature, top_k, top_p, min_p, columns["random_numbers"][:, None])
        parts = []
        for way, at in self._slices(logits.device):
            rows = logits[at] if self.are_all else logits[columns["random_rows"][at]]
            tokens = way(rows, every.of_rows(at), self._params[at])
            parts.append((tokens, torch.isfinite(rows.amax(dim=-1))))
        if len(parts) == 1:
            return parts[0]
        return torch.cat([tokens for tokens, _ in parts]), torch.cat([usable for _, usable in parts])

    def _draw_by_kernels(self, logits: Tensor, columns: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """All rows at once, whatever their ways."""
        from ..kernels.triton.sampling import Draws, draw_tokens  # imports triton, which is not everywhere

        params = columns["random_params"][..., 0]
        draws = Draws(logits, columns["random_rows"], params, columns["random_numbers"])
        are_filtered = any(_is_filtered(row_params, self._vocab_size) for row_params in self._params)
        return draw_tokens(draws, are_filtered=are_filtered)

    def _slices(self, device: torch.device) -> Iterator[tuple[_Draw, slice]]:
        """Rows that follow one another and go the same way, as many as are computed at once."""
        most = max(1, CPU_LOGITS_AT_ONCE // self._vocab_size) if device.type == "cpu" else len(self)
        for way in dict.fromkeys(self._ways):
            first, count = self._ways.index(way), self._ways.count(way)
            for start in range(first, first + count, most):
                yield way, slice(start, min(start + most, first + count))


def _draw_of_few(logits: Tensor, columns: _Columns, params: list[SamplingParams]) -> Tensor:
    """The `top_k` likeliest tokens are found first, and the rest looks at no others."""
    count = max(row_params.top_k for row_params in params)
    ids = likeliest(logits, count)
    top_logits = logits.gather(1, ids).double()
    weights = torch.exp((top_logits - top_logits[:, :1]) / columns.temperature)  # the first is the likeliest
    is_kept = torch.arange(count, device=ids.device) < columns.top_k
    weights = torch.where(is_kept & (weights >= columns.min_p), weights, 0.0)
    # A running sum, unlike another, is the same however many zeros follow.
    mass = weights.cumsum(dim=-1)[:, -1:]
    weights = torch.where(is_within(weights, columns.wanted(mass)), weights, 0.0)
    return _draw_among(ids, weights, columns)


def _draw_of_beginning(logits: Tensor, columns: _Columns, params: list[SamplingParams]) -> Tensor:
    """top_p, or a large top_k: how many tokens are kept, their probabilities say."""
    probs = _probabilities(logits, columns, params)
    if any(TOP_K_SMALL < row_params.top_k < logits.shape[1] for row_params in params):
        alike = torch.ones(1, 1, device=logits.device)
        probs.masked_fill_(~beginning(logits, alike, columns.top_k), 0.0)
    wanted = columns.wanted(probs.sum(dim=-1, keepdim=True, dtype=torch.float64))
    if may_look(logits):
        return _draw_of_tried(logits, probs, wanted, columns)
    return draw(probs.masked_fill_(~beginning(logits, probs, wanted), 0.0), columns.number[:, 0])


def _draw_of_tried(logits: Tensor, probs: Tensor, wanted: Tensor, columns: _Columns) -> Tensor:
    """Rows whose likeliest few reach `wanted` need no others."""
    ids = likeliest(logits, min(TOP_P_TRIED, logits.shape[1]))
    weights = probs.gather(1, ids).double()
    is_kept = is_within(weights, wanted)
    tokens = _draw_among(ids, torch.where(is_kept, weights, 0.0), columns)
    rest = (weights.cumsum(dim=-1)[:, -1] < wanted[:, 0]).nonzero()[:, 0]
    if len(rest):
        probs = probs[rest]
        probs.masked_fill_(~beginning(logits[rest], probs, wanted[rest]), 0.0)
        tokens[rest] = draw(probs, columns.number[rest, 0])
    return tokens


def _draw_of_all(logits: Tensor, columns: _Columns, params: list[SamplingParams]) -> Tensor:
    """Draws among all tokens, with no filter or min_p alone."""
    return draw(_probabilities(logits, columns, params), columns.number[:, 0])


_WAYS: list[_Draw] = [_draw_of_few, _draw_of_beginning, _draw_of_all]


def _way(params: SamplingParams, vocab_size: int) -> _Draw:
    top_k = _top_k(params, vocab_size)
    if top_k < vocab_size and top_k <= TOP_K_SMALL:
        return _draw_of_few
    return _draw_of_beginning if params.top_p < 1 or top_k < vocab_size else _draw_of_all


def _is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    """Whether some tokens cannot be drawn, however likely they are."""
    return params.min_p > 0 or _way(params, vocab_size) is not _draw_of_all


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    return params.top_k if 0 < params.top_k < vocab_size else vocab_size


def _probabilities(logits: Tensor, columns: _Columns, params: list[SamplingParams]) -> Tensor:
    """Probabilities of `logits` at their temperatures, without those that min_p drops."""
    if any(row_params.temperature != 1.0 for row_params in params):
        logits = logits / columns.temperature.float().clamp(max=TEMPERATURE_MAX)
    probs = torch.softmax(logits, dim=-1)
    if any(row_params.min_p > 0 for row_params in params):
        least = probs.amax(dim=-1, keepdim=True) * columns.min_p.float()
        probs.masked_fill_(probs < least, 0.0)
    return probs


def _draw_among(ids: Tensor, weights: Tensor, columns: _Columns) -> Tensor:
    """Draws like `draw_among`, of tokens in any order."""
    ids, order = ids.sort(dim=-1)
    return draw_among(ids, weights.gather(1, order), columns.number[:, 0])
