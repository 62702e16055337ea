"""Changes to logits before the choice: penalties, bias, and tokens that may not come yet.

They move the argmax too, so greedy rows need them as well. All rows of a step are changed together, in place.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.sequence import Sequence
from ..guidance.masks import mask_tokens
from .penalties import Penalties

Entry = tuple[int, int, float]
"""Row, token, and what is added to its logit."""


class Adjustments:
    """What to do to the logits of one composition of a batch."""

    def __init__(self, sequences: Seq[Sequence], eos_token_ids: Seq[int], vocab_size: int) -> None:
        self._rows = list(enumerate(sequences))
        self._vocab_size = vocab_size
        self._guided = [(row, s.guide) for row, s in self._rows if s.guide is not None]
        self._eos_token_ids = eos_token_ids
        penalised = [row for row, s in self._rows if s.sampling.has_penalties]
        counted = [sequences[row] for row in penalised]
        self._penalties = Penalties(penalised, counted, vocab_size) if penalised else None
        self._bias = [
            (row, token, bias) for row, s in self._rows for token, bias in s.sampling.logit_bias.items()
        ]
        self._has_min_tokens = any(_may_be_early(s) for s in sequences)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._penalties is not None or self._bias or self._has_min_tokens or self._guided)

    @property
    def has_room(self) -> bool:
        """Whether the next step's changes fit what is on the device."""
        return self._penalties is None or self._penalties.has_room

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What stays the same, for `start`."""
        penalties = self._penalties.arrays() if self._penalties is not None else {}
        guided = {"guided_rows": np.array([row for row, _ in self._guided])} if self._guided else {}
        return penalties | (_entries("bias", self._bias) if self._bias else {}) | guided

    def step_arrays(self) -> dict[str, NDArray[Any]]:
        """What a step needs besides: tokens that have come, those that grammars allow now, and ends that may
        not come yet.
        """
        changes = self._penalties.step_arrays() if self._penalties is not None else {}
        if self._guided:
            from ..guidance.guide import allowed_tokens  # needs llguidance

            changes["guided_masks"] = allowed_tokens([guide for _, guide in self._guided], self._vocab_size)
        if not self._has_min_tokens:
            return changes
        # Added, not put, so that a NaN shows.
        banned = [
            (row, token, float("-inf"))
            for row, s in self._rows
            if _may_be_early(s) and s.next_output_index < s.sampling.min_tokens
            for token in dict.fromkeys([*self._eos_token_ids, *s.sampling.stop_token_ids])
        ]
        return changes | (_entries("banned", banned) if banned else {})

    def start(self, columns: dict[str, Tensor]) -> None:
        """Take over `arrays`, now on the device."""
        if self._penalties is not None:
            self._penalties.start(columns)

    def apply(self, logits: Tensor, columns: dict[str, Tensor], promised: Tensor | None = None) -> None:
        """Change `logits` `[rows, vocabulary]`, float32, in place. A NaN stays a NaN.

        `columns` are all arrays on the device, `promised` the tokens of a step that is still in flight.
        """
        if self._penalties is not None:
            self._penalties.apply(logits, columns, promised)
        for name in ("bias", "banned"):
            if f"{name}_rows" in columns:
                where = (columns[f"{name}_rows"], columns[f"{name}_ids"])
                logits[where] = logits[where] + columns[f"{name}_values"]
        if self._guided:
            mask_tokens(logits, columns["guided_rows"], columns["guided_masks"])


def _may_be_early(sequence: Sequence) -> bool:
    """Whether its end may have to wait. A grammar decides alone when its sequence ends."""
    return sequence.sampling.min_tokens > 0 and sequence.guide is None


def _entries(name: str, entries: Seq[Entry]) -> dict[str, NDArray[Any]]:
    rows, ids, values = zip(*entries, strict=True)
    return {
        f"{name}_rows": np.array(rows, dtype=np.int64),
        f"{name}_ids": np.array(ids, dtype=np.int64),
        f"{name}_values": np.array(values, dtype=np.float32),
    }
