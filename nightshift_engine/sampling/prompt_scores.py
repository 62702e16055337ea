"""Log-probabilities of a prompt's tokens, each of the logits of the token before it."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.request import PromptLogprobs
from ..core.sequence import Sequence
from ..core.steps import Chunk
from ..execution.device.devices import to_device, to_host
from .sampler import ranked

ROWS_AT_ONCE = 32
"""Rows of logits that are widened and normalised together: bounds the memory."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """Tokens of one prompt: those after the places from `start` on."""

    sequence: Sequence
    start: int
    count: int
    num_top: int

    @property
    def token_ids(self) -> Seq[int]:
        return self.sequence.token_ids[self.start + 1 : self.start + 1 + self.count]


class PromptScores:
    """The scores that one step brings, on their way to the host: nothing has waited for them yet."""

    def __init__(self, logits: Tensor, chunks: Seq[Chunk]) -> None:
        """`logits` `[scored tokens, vocabulary]`, chunk after chunk; called before the chunks advance."""
        self._scored = [
            _Scored(
                chunk.sequence,
                chunk.sequence.num_computed_tokens,
                chunk.num_scored,
                min(chunk.sequence.request.prompt_logprobs or 0, logits.shape[1]),
            )
            for chunk in chunks
            if chunk.num_scored
        ]
        token_ids = np.concatenate([np.asarray(scored.token_ids, dtype=np.int64) for scored in self._scored])
        targets = to_device({"targets": token_ids}, logits.device)["targets"]
        num_top = max(1, *(scored.num_top for scored in self._scored))
        parts = [
            _score(logits[start : start + ROWS_AT_ONCE], targets[start : start + ROWS_AT_ONCE], num_top)
            for start in range(0, len(logits), ROWS_AT_ONCE)
        ]
        self._host = [to_host(torch.cat(columns)) for columns in zip(*parts, strict=True)]

    def read(self) -> Iterator[tuple[Sequence, int, list[PromptLogprobs] | None]]:
        """Each prompt, the first of its places, and the log-probabilities of the tokens after these.

        None in place of them where one is no number. Called once the device has come so far.
        """
        rows, begin = [*zip(*(column.tolist() for column in self._host), strict=True)], 0
        for scored in self._scored:
            own = rows[begin : begin + scored.count]
            begin += scored.count
            is_broken = any(logprob != logprob for logprob, *_ in own)
            yield scored.sequence, scored.start, None if is_broken else [*_logprobs(own, scored.num_top)]


def _logprobs(rows: Seq[tuple[float, int, list[int], list[float]]], num_top: int) -> Iterator[PromptLogprobs]:
    for logprob, rank, top_ids, top_logprobs in rows:
        yield PromptLogprobs(logprob, *ranked(top_ids[:num_top], top_logprobs[:num_top]), rank=rank)


def _score(logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities and ranks `[rows]` of the targets; ids and log-probabilities `[rows, num_top]`."""
    values = torch.log_softmax(logits.float(), dim=-1)
    chosen = values.gather(1, targets[:, None])
    top = values.topk(num_top, dim=-1)
    return chosen[:, 0], (values >= chosen).sum(dim=-1), top.indices, top.values
