"""Chooses each sequence's next token from its logits.

There is no generator and no state that a sequence needs: the random number of a draw is a function of the
sequence's seed and the index of the output token, so a sequence that moves to another machine, or is
recomputed, draws the same again. What a step needs on the device goes there in one copy, and nothing waits
for the device before `Choice.read`.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core.request import TokenLogprobs
from ..core.sequence import SampledRow
from ..execution.attention.selection import has_triton_kernels
from ..execution.device.devices import to_device, to_host
from .adjustments import Adjustments
from .filters import likeliest
from .random_rows import RandomRows


class RawLogprobs:
    """Log-probabilities of some rows, taken before anything changes their logits."""

    def __init__(
        self, logits: Tensor, rows: Tensor, counts: Seq[int], listed: Seq[Seq[int]], *, are_kept: bool
    ) -> None:
        """`logits` `[all rows, vocabulary]` of any float dtype; `counts`: alternatives per row asked;
        `listed`: those of each row, in place of the likeliest ones, or none.

        `are_kept`: they are float32, `rows` are all of them, and nothing changes them before `choose`.
        """
        self._rows = rows
        self._counts = [min(count, logits.shape[-1]) for count in counts]
        num_top = max(1, *self._counts)
        if has_triton_kernels(logits.device):
            from ..kernels.triton.sampling import log_sums  # imports triton, which is not everywhere

            self._values: Tensor | None = logits if are_kept else logits[rows].float()
            self._shift = log_sums(self._values)
            top_ids = likeliest(self._values, num_top)
        else:
            self._values = torch.log_softmax(logits[rows].float(), dim=-1)
            self._shift = (self._values.new_zeros(()), self._values.new_zeros(()))
            top_ids = self._values.topk(num_top, dim=-1).indices
        for row_ids, token_ids in zip(top_ids, listed, strict=True) if any(listed) else ():
            row_ids[: len(token_ids)] = torch.tensor(token_ids, dtype=top_ids.dtype)
        self._top_ids, self._top_logprobs = to_host(top_ids), to_host(self._logprobs(top_ids))

    def choose(self, tokens: Tensor) -> None:
        """Looks up the tokens chosen for all rows, on the device."""
        self._chosen = to_host(self._logprobs(tokens[self._rows][:, None])[:, 0])
        self._values = None  # as large as the logits

    def _logprobs(self, ids: Tensor) -> Tensor:
        """Log-probabilities of tokens `[rows, tokens]`."""
        assert self._values is not None, "tokens are chosen once"
        largest, log_sum = self._shift
        return self._values.gather(1, ids) - largest - log_sum

    def read(self, rows: Seq[int]) -> dict[int, TokenLogprobs]:
        """Log-probabilities of the tokens chosen by row, once the device has come so far."""
        chosen = self._chosen.tolist()
        top_ids, top_logprobs = self._top_ids.tolist(), self._top_logprobs.tolist()
        return {
            row: TokenLogprobs(chosen[at], *ranked(top_ids[at][:count], top_logprobs[at][:count]))
            for at, (row, count) in enumerate(zip(rows, self._counts, strict=True))
        }


def ranked(ids: list[int], logprobs: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The likeliest first, of equals the lowest id: `topk` promises no order among them."""
    ranked = sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple(id for id, _ in ranked), tuple(logprob for _, logprob in ranked)


ROWS_AT_ONCE = 16
"""Rows of a 16-bit dtype that are widened together for their argmax: bounds the memory, not the speed."""


@dataclass(slots=True)
class Sampled:
    """Tokens that a step chose, one per row, and the log-probabilities of the rows that ask for them."""

    tokens: list[int | None]
    """A row's token is None where it holds no usable number (NaN, or +inf): the model failed on that
    sequence.
    """
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


class Choice:
    """Tokens chosen on the device, on their way to the host: nothing has waited for them yet."""

    def __init__(
        self, tokens: Tensor, usable: Tensor, raw: RawLogprobs | None = None, logprob_rows: Seq[int] = ()
    ) -> None:
        self.tokens = tokens
        """int64 `[rows]`, on the device of the logits; any token where a row holds no usable number."""
        self._raw = raw
        self._logprob_rows = logprob_rows
        self._host = to_host(torch.where(usable, tokens, -1))  # both in one, to be copied in one
        self._copied: torch.cuda.Event | None = None
        if raw is not None:
            raw.choose(tokens)
        if tokens.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def read(self) -> Sampled:
        """Waits until the device has come so far."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens = [token if token >= 0 else None for token in self._host.tolist()]
        return Sampled(tokens, self._raw.read(self._logprob_rows) if self._raw is not None else {})


class Sampler:
    """Picks tokens for rows of logits. Holds what all requests share, and the columns of the last batch."""

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._batch: _Batch | None = None

    def compile_kernels(self, vocab_size: int, device: torch.device) -> None:
        """Compiles what draws tokens on `device`, so that no step waits for a compiler."""
        if has_triton_kernels(device):
            from ..kernels.triton.sampling import compile_all  # imports triton, which is not everywhere

            compile_all(vocab_size, device)

    def sample(self, logits: Tensor, sequences: Seq[SampledRow]) -> Sampled:
        """One token per row of `logits` `[sequences, vocabulary]`, of any float dtype.

        The logits may be overwritten."""
        return self.choose(logits, sequences).read()

    @torch.inference_mode()
    def choose(self, logits: Tensor, sequences: Seq[SampledRow], promised: Tensor | None = None) -> Choice:
        """Samples like `sample`, without waiting for the device. `promised` tokens are not yet on the
        host. A token drafted for a sequence has a row of its own.
        """
        batch, self._batch = self._batch, None
        if batch is None or batch.sequences != sequences or not batch.has_room:
            batch = _Batch(list(sequences), self._eos_token_ids, logits.shape[-1])
        choice = batch.choose(logits, promised)
        self._batch = batch
        return choice


class _Batch:
    """One composition of a batch, and its columns on the device, which hold while it stays the same."""

    def __init__(self, sequences: list[SampledRow], eos_token_ids: Seq[int], vocab_size: int) -> None:
        self.sequences = sequences
        self._adjustments = Adjustments(sequences, eos_token_ids, vocab_size)
        self._random = RandomRows(sequences, vocab_size)
        wishes = [(row, s.sampling.logprobs) for row, s in enumerate(sequences)]
        self._logprob_rows = [row for row, count in wishes if count is not None]
        self._logprob_counts = [count for _, count in wishes if count is not None]
        self._listed = [sequences[row].sampling.logprob_token_ids for row in self._logprob_rows]
        self._columns: dict[str, Tensor] | None = None

    @property
    def has_room(self) -> bool:
        """Whether what has changed since fits the columns."""
        return self._adjustments.has_room

    def choose(self, logits: Tensor, promised: Tensor | None) -> Choice:
        columns = self._upload(logits.device)
        raw = self._raw_logprobs(logits, columns["logprob_rows"]) if self._logprob_rows else None
        if len(self._random) or self._adjustments:
            logits = logits.float().contiguous()
        self._adjustments.apply(logits, columns, promised)
        return Choice(*self._tokens(logits, columns), raw, self._logprob_rows)

    def _raw_logprobs(self, logits: Tensor, rows: Tensor) -> RawLogprobs:
        are_all = len(rows) == len(logits) and logits.dtype == torch.float32
        are_kept = are_all and not self._adjustments
        return RawLogprobs(logits, rows, self._logprob_counts, self._listed, are_kept=are_kept)

    def _upload(self, device: torch.device) -> dict[str, Tensor]:
        """Columns that the step needs, in one copy: the numbers of its draws, and at first all columns."""
        arrays = self._random.step_arrays() | self._adjustments.step_arrays()
        if self._columns is not None:
            return self._columns | to_device(arrays, device)
        kept = self._random.arrays() | self._adjustments.arrays()
        if self._logprob_rows:
            kept["logprob_rows"] = np.array(self._logprob_rows, dtype=np.int64)
        columns = to_device(arrays | kept, device)
        self._columns = {name: columns[name] for name in kept}
        self._adjustments.start(columns)
        return columns

    def _tokens(self, logits: Tensor, columns: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens of all rows, and whether they are any."""
        if not len(self._random):
            return _argmax(logits)
        drawn, are_drawn = self._random.draw(logits, columns)
        if self._random.are_all:
            return drawn, are_drawn
        rows = columns["random_rows"]
        tokens, usable = _argmax(logits)
        return tokens.scatter_(0, rows, drawn), usable.scatter_(0, rows, are_drawn)


def _argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of each row, on a tie the lowest id, and whether the maximum is a number."""
    if logits.device.type != "cpu":
        tokens = logits.argmax(dim=-1)
        return tokens, torch.isfinite(logits.gather(1, tokens[:, None])[:, 0])
    token_ids = np.empty(len(logits), dtype=np.int64)
    usable = np.empty(len(logits), dtype=np.bool_)
    rows_at_once = len(logits) if logits.dtype == torch.float32 else ROWS_AT_ONCE
    for start in range(0, len(logits), max(1, rows_at_once)):
        values = logits[start : start + rows_at_once].float().numpy()
        rows = slice(start, start + len(values))
        token_ids[rows] = values.argmax(axis=-1)
        usable[rows] = np.isfinite(values[np.arange(len(values)), token_ids[rows]])
    return torch.from_numpy(token_ids), torch.from_numpy(usable)
