"""How likely the model itself found a token: log-softmax of its own logits.

Before temperature, filters, penalties and bias, as OpenAI's API and vLLM's `raw_logprobs` have it. Computed
for the rows that ask, and no others, and on its way to the host as soon as the tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ..core.request import TokenLogprobs
from ..execution.device.device_copies import to_host


class RawLogprobs:
    """Log-probabilities of some rows, taken before anything changes their logits."""

    def __init__(self, logits: Tensor, rows: Tensor, counts: Seq[int]) -> None:
        """`logits` `[all rows, vocabulary]` of any float dtype; `counts`: alternatives per row asked."""
        self._rows = rows
        self._counts = [min(count, logits.shape[-1]) for count in counts]
        self._all: Tensor | None = torch.log_softmax(logits[rows].float(), dim=-1)
        top = self._all.topk(max(self._counts), dim=-1)
        self._top_ids, self._top_logprobs = to_host(top.indices), to_host(top.values)

    def choose(self, tokens: Tensor) -> None:
        """Look up the tokens chosen for all rows, on the device."""
        assert self._all is not None, "tokens are chosen once"
        self._chosen = to_host(self._all.gather(1, tokens[self._rows][:, None])[:, 0])
        self._all = None  # as large as the logits

    def read(self, rows: Seq[int]) -> dict[int, TokenLogprobs]:
        """By row, for the tokens chosen; `rows` as given. Call it once the device has come so far."""
        chosen = self._chosen.tolist()
        top_ids, top_logprobs = self._top_ids.tolist(), self._top_logprobs.tolist()
        return {
            row: TokenLogprobs(chosen[at], *_ranked(top_ids[at][:count], top_logprobs[at][:count]))
            for at, (row, count) in enumerate(zip(rows, self._counts, strict=True))
        }


def _ranked(ids: list[int], logprobs: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The likeliest first, of equals the lowest id: `topk` promises no order among them."""
    ranked = sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple(id for id, _ in ranked), tuple(logprob for _, logprob in ranked)
