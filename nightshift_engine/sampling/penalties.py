"""Penalties on tokens that have occurred, from counts that stay on the device.

Each distinct token of a sequence has a slot: where its logit lies, and how often it came. The slots of one
composition of a batch are uploaded once; each step brings what is new since. A token that the step before
has chosen and the host does not know yet counts too: its value is taken on the device.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.sequence import Sequence

ROOM = 32
"""Slots per sequence for tokens to come; once they are taken, all is uploaded anew."""


class Penalties:
    """The counts of the sequences with penalties, as of the last `step_arrays`."""

    def __init__(self, rows: Seq[int], sequences: Seq[Sequence], vocab_size: int) -> None:
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
        places = np.concatenate([each.ids for each in counts]) + np.array(self._starts)[runs]
        params = [s.sampling for s in self._sequences]
        strengths = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
        return {
            "penalty_places": np.pad(places, (0, free)),
            "penalty_runs": np.pad(runs, (0, free)),
            "penalty_counts": np.pad(np.concatenate([each.counts for each in counts]), (0, free)),
            "penalty_starts": np.array(self._starts, dtype=np.int64),
            "penalty_params": np.array(strengths, dtype=np.float32),
        }

    def step_arrays(self) -> dict[str, NDArray[Any]]:
        """What has changed since the last call, and whose last token is only promised."""
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
        """Take over `arrays`, now on the device."""
        self._places, self._runs = columns["penalty_places"], columns["penalty_runs"]
        self._counts, self._params = columns["penalty_counts"], columns["penalty_params"].T
        self._params_of_slots = self._params[:, self._runs]

    def apply(self, logits: Tensor, columns: dict[str, Tensor], promised: Tensor | None) -> None:
        """Change `logits` `[rows, vocabulary]`, float32 and contiguous, in place.

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
            found = flat.index_select(0, new)
            # As if it came for the first time; if not, its own slot says otherwise below.
            flat.index_copy_(0, new, torch.where(sources >= 0, _penalised(found, 1.0, self._params), found))
            counts = counts + (places == torch.where(sources >= 0, new, -1)[self._runs[used]])
        flat.index_copy_(0, places, _penalised(values, counts, self._params_of_slots[:, used]))

    def _take(self, columns: dict[str, Tensor]) -> None:
        """Apply what has changed."""
        if "changed_slots" not in columns:
            return
        slots, runs = columns["changed_slots"], columns["changed_runs"]
        self._places.index_copy_(0, slots, columns["changed_places"])
        self._counts.index_copy_(0, slots, columns["changed_counts"])
        self._runs.index_copy_(0, slots, runs)
        self._params_of_slots.index_copy_(1, slots, self._params.index_select(1, runs))


def _penalised(logits: Tensor, counts: Tensor | float, params: Tensor) -> Tensor:
    """Repetition over prompt and output, frequency and presence over the output, which `counts` counts.

    As in vLLM and transformers: a positive logit is divided by the repetition penalty, a negative one
    multiplied. `params` are the three, `[3, logits]`.
    """
    repetition, frequency, presence = params
    values = torch.where(logits > 0, logits / repetition, logits * repetition)
    values -= frequency * counts
    return values.sub_(presence * (counts > 0))
