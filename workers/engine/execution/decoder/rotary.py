"""Cosines and sines of rotary embeddings, tabulated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .recognise import NotPlain

ROPE_ROWS = 1024
"""The table of cosines grows by whole multiples of this many positions."""


class Rotary:
    """Cosines and sines of the rotary embedding by position, as the model's own module gives them."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._cosine, self._sine = self._table(ROPE_ROWS)

    @property
    def half(self) -> int:
        return self._cosine.shape[1]

    def upto(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Tables `[at least num_positions, half]`."""
        if num_positions > len(self._cosine):
            rows = max(num_positions, 2 * len(self._cosine))
            self._cosine, self._sine = self._table(-(-rows // ROPE_ROWS) * ROPE_ROWS)
        return self._cosine, self._sine

    def _table(self, num_positions: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(num_positions)[None]
        tables = self._module(torch.zeros(1), positions)  # its first argument only says which dtype
        halves = []
        for table in tables:
            first, second = table[0].float().chunk(2, dim=-1)
            if not torch.equal(first, second):
                raise NotPlain("its rotary embedding interleaves")
            halves.append(first.contiguous())
        return halves[0], halves[1]
