"""How likely the model itself found a token: log-softmax of its own logits.

Before temperature, filters, penalties and bias, as OpenAI's API and vLLM's `raw_logprobs` have it. Computed
for the rows that ask, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ..request import TokenLogprobs


class RawLogprobs:
    """Log-probabilities of some rows, taken before anything changes their logits."""

    def __init__(self, logits: Tensor, rows: Seq[int], counts: Seq[int]) -> None:
        """`logits` `[all rows, vocabulary]` of any float dtype; `counts`: alternatives per row asked."""
        self._rows = rows
        self._counts = [min(count, logits.shape[-1]) for count in counts]
        self._all = torch.log_softmax(logits[list(rows)].float(), dim=-1)
        self._top = self._all.topk(max(self._counts), dim=-1)

    def of(self, tokens: Seq[int | None]) -> dict[int, TokenLogprobs]:
        """By row, for the token chosen there. `tokens` are those of all rows."""
        chosen = [tokens[row] or 0 for row in self._rows]
        column = torch.tensor(chosen, device=self._all.device)[:, None]
        logprobs = self._all.gather(1, column)[:, 0].tolist()
        top_ids, top_logprobs = self._top.indices.tolist(), self._top.values.tolist()
        return {
            row: TokenLogprobs(logprobs[at], *_ranked(top_ids[at][:count], top_logprobs[at][:count]))
            for at, (row, count) in enumerate(zip(self._rows, self._counts, strict=True))
        }


def _ranked(ids: list[int], logprobs: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The likeliest first, of equals the lowest id: `topk` promises no order among them."""
    ranked = sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple(id for id, _ in ranked), tuple(logprob for _, logprob in ranked)
