"""Cosines and sines of a rotary embedding, tabulated by position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ROPE_ROWS = 1024
"""Tables grow by whole multiples of this many positions."""
STATIC_ROPES = {"default", "linear", "llama3", "yarn", "proportional"}
"""Rotary embeddings that depend on the position alone, so that they can be tabulated."""


class Rotary:
    """`tables` gives cosines and sines `[positions, pairs]` of an int64 tensor of positions."""

    def __init__(self, tables: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        self._tables = tables
        self.cosine, self.sine = self._table(ROPE_ROWS)

    def grow_to(self, num_positions: int) -> None:
        """Have at least `num_positions` rows in `cosine` and `sine`; they move where they grow."""
        if num_positions > len(self.cosine):
            rows = max(num_positions, 2 * len(self.cosine))
            self.cosine, self.sine = self._table(-(-rows // ROPE_ROWS) * ROPE_ROWS)

    def _table(self, num_positions: int) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            cosine, sine = self._tables(torch.arange(num_positions))
        return cosine.contiguous(), sine.contiguous()
