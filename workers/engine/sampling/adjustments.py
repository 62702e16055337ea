"""Changes to logits before the choice: penalties, bias, and tokens that may not come yet.

They move the argmax too, so greedy rows need them as well. All rows of a step are changed together: what
each sequence contributes lies in columns that are put end to end.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..batching.sequence import Sequence

Row = tuple[int, Sequence]


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What to do to the rows of one composition of a batch. Rows are numbered as in the given logits."""

    penalised: Seq[Row]
    biased: Seq[Row]
    held_open: Seq[Row]
    """Rows that may not end before `min_tokens`."""
    eos_token_ids: Seq[int]

    @classmethod
    def of(cls, sequences: Seq[Sequence], eos_token_ids: Seq[int]) -> Adjustments:
        rows = list(enumerate(sequences))
        return cls(
            penalised=[row for row in rows if row[1].sampling.has_penalties],
            biased=[row for row in rows if row[1].sampling.logit_bias],
            held_open=[row for row in rows if row[1].sampling.min_tokens],
            eos_token_ids=eos_token_ids,
        )

    @staticmethod
    def concern(sequence: Sequence) -> bool:
        sampling = sequence.sampling
        return bool(sampling.has_penalties or sampling.logit_bias or sampling.min_tokens)

    def apply(self, logits: Tensor) -> None:
        """Change `logits` `[rows, vocabulary]`, float32, in place. A NaN stays a NaN."""
        if self.penalised:
            _penalise(logits, self.penalised)
        if self.biased:
            _bias(logits, self.biased)
        held = [(row, s) for row, s in self.held_open if s.num_output_tokens < s.sampling.min_tokens]
        if held:
            ids = [[*self.eos_token_ids, *sequence.sampling.stop_token_ids] for _, sequence in held]
            rows = np.repeat([row for row, _ in held], [len(each) for each in ids])
            where = _where(rows, np.array([id for each in ids for id in each], dtype=np.int64), logits)
            logits[where] = logits[where] + float("-inf")  # added, not put: so that a NaN shows


def _penalise(logits: Tensor, rows: Seq[Row]) -> None:
    """Repetition over prompt and output, frequency and presence over the output.

    As in vLLM and transformers: a positive logit is divided by the repetition penalty, a negative one
    multiplied.
    """
    columns = [sequence.token_counts for _, sequence in rows]
    sizes = [len(column.ids) for column in columns]
    where = _where(
        np.repeat([row for row, _ in rows], sizes), np.concatenate([c.ids for c in columns]), logits
    )
    counts = _like(np.concatenate([c.counts for c in columns]), logits)
    params = [sequence.sampling for _, sequence in rows]
    wanted = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
    repetition, frequency, presence = _like(np.repeat(np.array(wanted, np.float32), sizes, axis=0).T, logits)
    values = logits[where]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[where] = values - frequency * counts - presence * (counts > 0)


def _bias(logits: Tensor, rows: Seq[Row]) -> None:
    biases = [sequence.sampling.logit_bias for _, sequence in rows]
    where = _where(
        np.repeat([row for row, _ in rows], [len(bias) for bias in biases]),
        np.array([id for bias in biases for id in bias], dtype=np.int64),
        logits,
    )
    values = np.array([value for bias in biases for value in bias.values()], dtype=np.float32)
    logits[where] = logits[where] + _like(values, logits)


def _where(
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    ids: np.ndarray[tuple[int], np.dtype[np.int64]],
    logits: Tensor,
) -> tuple[Tensor, Tensor]:
    return _like(rows, logits), _like(ids, logits)


def _like(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], logits: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(logits.device)
