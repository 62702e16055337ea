"""Chooses each sequence's next token from its logits.

There is no generator and no state: the random number of a draw is a function of the sequence's seed and the
index of the output token, so a sequence that moves to another machine, or is recomputed, draws the same
again. A batch that is greedy throughout is looked at once, for its argmax.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..batching.sequence import Sequence
from ..request import TokenLogprobs
from .adjustments import Adjustments
from .draws import Filters, draw, seeds_column, uniform
from .logprobs import RawLogprobs

TEMPERATURE_MIN = 1e-5
"""Colder than this is greedy, as in vLLM: the softmax has nothing left but the likeliest token."""

ROWS_AT_ONCE = 16
"""Rows of a 16-bit dtype that are widened together for their argmax: bounds the memory, not the speed."""


@dataclass(slots=True)
class Sampled:
    """What a step chose: one token per row, and the log-probabilities of the rows that ask for them."""

    tokens: list[int | None]
    """None where a row holds no usable number (NaN, or +inf): the model failed on that sequence."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


class Choice:
    """Tokens chosen on the device, on their way to the host: nothing has waited for them yet."""

    def __init__(self, tokens: Tensor, usable: Tensor, raw: RawLogprobs | None = None) -> None:
        self.tokens = tokens
        """int64 `[rows]`, on the device of the logits; any token where a row holds no usable number."""
        self._raw = raw
        # Both in one, so that they are copied in one.
        marked = torch.where(usable, tokens, -1)
        self._copied: torch.cuda.Event | None = None
        if tokens.is_cuda:
            self._host = torch.empty(marked.shape, dtype=marked.dtype, pin_memory=True)
            self._host.copy_(marked, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        else:
            self._host = marked

    def read(self) -> Sampled:
        """Wait until the device has come so far."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens = [token if token >= 0 else None for token in self._host.tolist()]
        return Sampled(tokens, self._raw.of(tokens) if self._raw is not None else {})


class Sampler:
    """Picks tokens for rows of logits. Holds what all requests share, and the columns of the last batch."""

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._batch = _Batch([], ())

    def sample(self, logits: Tensor, sequences: Seq[Sequence]) -> Sampled:
        """One token per row of `logits` `[sequences, vocabulary]`, of any float dtype.

        The logits may be overwritten."""
        return self.choose(logits, sequences).read()

    @torch.inference_mode()
    def choose(self, logits: Tensor, sequences: Seq[Sequence]) -> Choice:
        """As `sample`, without waiting for the device: `Choice.read` waits."""
        if self._batch.sequences != sequences:  # the parameter columns hold while the batch stays the same
            self._batch = _Batch(list(sequences), self._eos_token_ids)
        batch = self._batch
        raw = RawLogprobs(logits, batch.logprob_rows, batch.logprob_counts) if batch.logprob_rows else None
        if len(batch.choosy_rows) == len(sequences):
            return Choice(*batch.choose(logits), raw)
        tokens, usable = _argmax(logits)
        if batch.choosy_rows:
            tokens[batch.choosy_rows], usable[batch.choosy_rows] = batch.choose(logits)
        return Choice(tokens, usable, raw)


class _Batch:
    """The parameters of one composition of a batch, as columns."""

    def __init__(self, sequences: list[Sequence], eos_token_ids: Seq[int]) -> None:
        self.sequences = sequences
        wishes = [(row, s.sampling.logprobs) for row, s in enumerate(sequences)]
        self.logprob_rows = [row for row, count in wishes if count is not None]
        self.logprob_counts = [count for _, count in wishes if count is not None]
        self.choosy_rows = [row for row, s in enumerate(sequences) if _is_random(s) or Adjustments.concern(s)]
        """Rows for which the argmax of the logits as they are is not the answer."""
        choosy = [sequences[row] for row in self.choosy_rows]
        self._adjustments = Adjustments.of(choosy, eos_token_ids)
        self._random_rows = [row for row, sequence in enumerate(choosy) if _is_random(sequence)]
        self._random = [choosy[row] for row in self._random_rows]
        self._seeds = seeds_column([sequence.seed for sequence in self._random])
        self._temperatures = [sequence.sampling.temperature for sequence in self._random]
        self._filters: Filters | None = None

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of the choosy rows, in order, and whether they are any."""
        every = len(self.choosy_rows) == len(self.sequences)
        work = (logits if every else logits[self.choosy_rows]).float()
        self._adjustments.apply(work)
        if self._random_rows and len(self._random_rows) == len(work):
            return self._draw(work)
        tokens, usable = _argmax(work)
        if self._random_rows:
            tokens[self._random_rows], usable[self._random_rows] = self._draw(work[self._random_rows])
        return tokens, usable

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of the random rows `[rows, vocabulary]`, which are overwritten, and whether they are any."""
        usable = torch.isfinite(logits.amax(dim=-1))
        if set(self._temperatures) != {1.0}:
            logits /= torch.tensor(self._temperatures, dtype=logits.dtype, device=logits.device)[:, None]
        probs = torch.softmax(logits, dim=-1)
        if self._filters is None:
            params = [sequence.sampling for sequence in self._random]
            self._filters = Filters(params, logits.shape[-1], logits.device)
        self._filters.apply(probs)
        numbers = uniform(self._seeds, [sequence.next_output_index for sequence in self._random])
        return draw(probs, numbers), usable


def _is_random(sequence: Sequence) -> bool:
    return sequence.sampling.temperature >= TEMPERATURE_MIN


def _argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of each row, on a tie the lowest id, and whether the row's maximum is a number.

    NumPy's argmax is a vectorised scan and an order of magnitude faster than torch's on a CPU. Both take a
    NaN for the maximum, so a row that holds one shows it.
    """
    if logits.device.type != "cpu":
        tokens = logits.argmax(dim=-1)
        return tokens, torch.isfinite(logits.gather(1, tokens[:, None])[:, 0])
    found = np.empty(len(logits), dtype=np.int64)
    usable = np.empty(len(logits), dtype=np.bool_)
    rows_at_once = len(logits) if logits.dtype == torch.float32 else ROWS_AT_ONCE
    for start in range(0, len(logits), max(1, rows_at_once)):
        values = logits[start : start + rows_at_once].float().numpy()
        rows = slice(start, start + len(values))
        found[rows] = values.argmax(axis=-1)
        usable[rows] = np.isfinite(values[np.arange(len(values)), found[rows]])
    return torch.from_numpy(found), torch.from_numpy(usable)
