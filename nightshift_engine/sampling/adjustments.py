"""Changes to logits before the choice: penalties, bias, and tokens that may not come yet.

They move the argmax too, so greedy rows need them as well. All rows of a step are changed together, in place.
"""

from collections.abc import Sequence as Seq
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.sequence import SampledRow


def mask_tokens(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """Sets the logits of tokens whose bit in `masks` is not set to minus infinity; NaN stays."""
    by_bytes = masks.view(torch.uint8).flatten().int()
    added = _added_by_byte(logits.device).index_select(0, by_bytes).view(len(masks), -1)
    logits.index_add_(0, rows, added[:, : logits.shape[1]])


@cache
def _added_by_byte(device: torch.device) -> Tensor:
    """Changes to eight tokens' logits, for each value of their byte: float32 `[256, 8]`."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits.bool(), 0.0, -torch.inf).to(device)


WORD_BITS = 32
ROOM = 32
"""Slots per sequence for tokens to come; once they are taken, all is uploaded anew."""


class Penalties:
    """The counts of the sequences with penalties, as of the last `step_arrays`."""

    def __init__(self, rows: Seq[int], sequences: Seq[SampledRow], vocab_size: int) -> None:
        """`rows` are those of the logits `[rows, vocabulary]` that `sequences` have."""
        self._sequences = sequences
        self._starts = [row * vocab_size for row in rows]
        listed = [len(sequence.token_counts.ids) for sequence in sequences]
        ends = np.cumsum(listed).tolist()
        self._num_slots: int = ends[-1]
        self._num_slots_max: int = self._num_slots + ROOM * len(sequences)
        # Where each sequence's tokens have their slots: those listed first lie together, the others anywhere.
        self._listed, self._offsets = listed, [end - n for end, n in zip(ends, listed, strict=True)]
        self._later: list[list[int]] = [[] for _ in sequences]
        self._num_known = [len(sequence.token_ids) for sequence in sequences]

    @property
    def has_room(self) -> bool:
        """Whether there are slots for all that has become known since."""
        new = sum(len(s.token_ids) - known for s, known in zip(self._sequences, self._num_known, strict=True))
        return self._num_slots + new <= self._num_slots_max

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The slots as they are now, for `start`."""
        counts = [sequence.token_counts for sequence in self._sequences]
        free = self._num_slots_max - self._num_slots
        runs = np.repeat(np.arange(len(counts)), self._listed)
        places = np.concatenate([tokens.ids for tokens in counts]) + np.array(self._starts)[runs]
        params = [s.sampling for s in self._sequences]
        strengths = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
        return {
            "penalty_places": np.pad(places, (0, free)),
            "penalty_runs": np.pad(runs, (0, free)),
            "penalty_counts": np.pad(np.concatenate([tokens.counts for tokens in counts]), (0, free)),
            "penalty_starts": np.array(self._starts, dtype=np.int64),
            "penalty_params": np.array(strengths, dtype=np.float32),
        }

    def step_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of what has changed since the last call, and whose last token is only promised."""
        changes = [change for run in range(len(self._sequences)) for change in self._changes(run)]
        arrays: dict[str, NDArray[Any]] = {}
        if changes:
            slots, places, runs, counts = zip(*changes, strict=True)
            arrays["changed_slots"] = np.array(slots, dtype=np.int64)
            arrays["changed_places"] = np.array(places, dtype=np.int64)
            arrays["changed_runs"] = np.array(runs, dtype=np.int64)
            arrays["changed_counts"] = np.array(counts, dtype=np.float32)
        if any(sequence.num_promised for sequence in self._sequences):
            sources = [s.promised_row if s.num_promised else -1 for s in self._sequences]
            arrays["promised_sources"] = np.array(sources, dtype=np.int64)
        return arrays

    def _changes(self, run: int) -> list[tuple[int, int, int, float]]:
        """Slot, place, run and count of each token that a sequence was given since."""
        sequence, later = self._sequences[run], self._later[run]
        tokens = sequence.token_ids[self._num_known[run] :]
        self._num_known[run] += len(tokens)
        changes = []
        for token in tokens:
            place, count = sequence.token_counts.look_up(token)
            beyond = place - self._listed[run]
            while beyond >= len(later):
                later.append(self._num_slots)
                self._num_slots += 1
            slot = later[beyond] if beyond >= 0 else self._offsets[run] + place
            changes.append((slot, self._starts[run] + token, run, count))
        return changes

    def start(self, columns: dict[str, Tensor]) -> None:
        """Takes over `arrays`, now on the device."""
        self._places, self._runs = columns["penalty_places"], columns["penalty_runs"]
        self._counts, self._params = columns["penalty_counts"], columns["penalty_params"].T
        self._params_of_slots = self._params[:, self._runs]

    def apply(self, logits: Tensor, columns: dict[str, Tensor], promised: Tensor | None) -> None:
        """Changes `logits` `[rows, vocabulary]`, float32 and contiguous, in place.

        `promised` are the tokens of the step before, if the host does not know them yet.
        """
        self._take(columns)
        flat, used = logits.view(-1), slice(self._num_slots)
        places, counts = self._places[used], self._counts[used]
        values = flat.index_select(0, places)
        if "promised_sources" in columns:
            assert promised is not None, "tokens are promised by no step"
            sources = columns["promised_sources"]
            new = columns["penalty_starts"] + promised[sources.clamp(min=0)]
            earlier = flat.index_select(0, new)
            # As if it came for the first time; if not, its own slot says otherwise below.
            flat.index_copy_(
                0, new, torch.where(sources >= 0, _penalised(earlier, 1.0, self._params), earlier)
            )
            counts = counts + (places == torch.where(sources >= 0, new, -1)[self._runs[used]])
        flat.index_copy_(0, places, _penalised(values, counts, self._params_of_slots[:, used]))

    def _take(self, columns: dict[str, Tensor]) -> None:
        """Applies what has changed."""
        if "changed_slots" not in columns:
            return
        slots, runs = columns["changed_slots"], columns["changed_runs"]
        self._places.index_copy_(0, slots, columns["changed_places"])
        self._counts.index_copy_(0, slots, columns["changed_counts"])
        self._runs.index_copy_(0, slots, runs)
        self._params_of_slots.index_copy_(1, slots, self._params.index_select(1, runs))


def _penalised(logits: Tensor, counts: Tensor | float, params: Tensor) -> Tensor:
    """Applies the repetition, frequency and presence penalties as vLLM and transformers do."""
    repetition, frequency, presence = params
    values = torch.where(logits > 0, logits / repetition, logits * repetition)
    values -= frequency * counts
    return values.sub_(presence * (counts > 0))


Entry = tuple[int, int, float]
"""Row, token, and what is added to its logit."""


class Adjustments:
    """Changes to the logits of one composition of a batch."""

    def __init__(self, sequences: Seq[SampledRow], eos_token_ids: Seq[int], vocab_size: int) -> None:
        self._rows = list(enumerate(sequences))
        self._vocab_size = vocab_size
        listed = [(row, s.sampling.allowed_token_ids) for row, s in self._rows]
        self._allowed = {row: self._bits(token_ids) for row, token_ids in listed if token_ids}
        steered = any(s.guide is not None or s.thought is not None for s in sequences)
        self._may_mask = steered or bool(self._allowed)
        self._is_masked = False  # in this step
        self._eos_token_ids = eos_token_ids
        penalised = [row for row, s in self._rows if s.sampling.has_penalties]
        counted = [sequences[row] for row in penalised]
        self._penalties = Penalties(penalised, counted, vocab_size) if penalised else None
        self._bias = [
            (row, token, bias) for row, s in self._rows for token, bias in s.sampling.logit_bias.items()
        ]
        self._has_min_tokens = any(_may_be_early(s) for s in sequences)

    def __bool__(self) -> bool:
        """Whether there is anything to do, once `step_arrays` are made."""
        return bool(self._penalties is not None or self._bias or self._has_min_tokens or self._is_masked)

    @property
    def has_room(self) -> bool:
        """Whether the next step's changes fit what is on the device."""
        return self._penalties is None or self._penalties.has_room

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that stay the same, for `start`."""
        penalties = self._penalties.arrays() if self._penalties is not None else {}
        return penalties | (_entries("bias", self._bias) if self._bias else {})

    def step_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that a step needs besides: new tokens, those that grammars allow, and early ends."""
        changes = self._penalties.step_arrays() if self._penalties is not None else {}
        if self._may_mask:
            changes |= self._masks()
        if not (self._has_min_tokens or self._may_mask):
            return changes
        # Added, not put, so that a NaN shows.
        banned = [
            (row, token, float("-inf"))
            for row, s in self._rows
            if _ends_too_early(s)
            for token in dict.fromkeys(
                [*self._eos_token_ids, *(s.sampling.stop_token_ids if s.guide is None else ())]
            )
        ]
        return changes | (_entries("banned", banned) if banned else {})

    def _masks(self) -> dict[str, NDArray[Any]]:
        """The rows of which not every token may come next, and the tokens that may, as bits."""
        masks = dict(self._allowed)
        guided = [(row, s) for row, s in self._rows if s.is_guided_next]
        for (row, _), mask in zip(guided, self._guided_masks([s for _, s in guided]), strict=True):
            masks[row] = mask & masks[row] if row in masks else mask
        for row, s in self._rows:
            if s.thought is not None and (token := s.thought.forced_id) is not None:
                masks[row] = self._bits((token,))
        self._is_masked = bool(masks)
        return {"masked_rows": np.array([*masks]), "masks": np.stack([*masks.values()])} if masks else {}

    def _bits(self, token_ids: Seq[int]) -> NDArray[np.int32]:
        """The tokens as a mask: int32 `[vocabulary / 32, rounded up]`, lowest bit first."""
        bits = np.zeros(-(-self._vocab_size // WORD_BITS) * WORD_BITS, dtype=np.bool_)
        bits[list(token_ids)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _guided_masks(self, sequences: Seq[SampledRow]) -> NDArray[np.int32]:
        if not sequences:
            return np.zeros((0, 0), dtype=np.int32)
        from ..guidance.guide import allowed_tokens  # needs llguidance

        masks = allowed_tokens([s.guide for s in sequences if s.guide is not None], self._vocab_size)
        for mask, s in zip(masks, sequences, strict=True):
            if s.thought is not None and s.thought.may_begin and (begin := s.thought.begin_id) is not None:
                _allow(mask, begin)
        return masks

    def start(self, columns: dict[str, Tensor]) -> None:
        """Takes over `arrays`, now on the device."""
        if self._penalties is not None:
            self._penalties.start(columns)

    def apply(self, logits: Tensor, columns: dict[str, Tensor], promised: Tensor | None = None) -> None:
        """Changes `logits` `[rows, vocabulary]`, float32, in place. A NaN stays a NaN.

        `columns` are all arrays on the device, `promised` the tokens of a step that is still in flight.
        """
        if self._penalties is not None:
            self._penalties.apply(logits, columns, promised)
        for name in ("bias", "banned"):
            if f"{name}_rows" in columns:
                where = (columns[f"{name}_rows"], columns[f"{name}_ids"])
                logits[where] = logits[where] + columns[f"{name}_values"]
        if self._is_masked:
            mask_tokens(logits, columns["masked_rows"], columns["masks"])


def _may_be_early(sequence: SampledRow) -> bool:
    """Whether its end may have to wait. A grammar decides alone when its sequence ends."""
    return sequence.sampling.min_tokens > 0 and sequence.guide is None


def _ends_too_early(sequence: SampledRow) -> bool:
    """Whether the next token may not be the last: by `min_tokens`, or in a thought before a guided answer."""
    if sequence.guide is not None:
        return not sequence.is_guided_next
    return _may_be_early(sequence) and sequence.next_output_index < sequence.sampling.min_tokens


def _allow(mask: NDArray[np.int32], token: int) -> None:
    mask.view(np.uint32)[token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS)


def _entries(name: str, entries: Seq[Entry]) -> dict[str, NDArray[Any]]:
    rows, ids, values = zip(*entries, strict=True)
    return {
        f"{name}_rows": np.array(rows, dtype=np.int64),
        f"{name}_ids": np.array(ids, dtype=np.int64),
        f"{name}_values": np.array(values, dtype=np.float32),
    }
