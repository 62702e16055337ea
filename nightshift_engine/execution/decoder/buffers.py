"""Memory for activations, kept from step to step."""

from __future__ import annotations

import torch
from torch import Tensor

CACHE_WAY_BYTES = 4096
"""Rows that lie a multiple of this apart share one set of the first cache, which has fewer ways than a kernel
has rows: fourteen rows of a product by turns would put one another out."""
GAP_BYTES = 64


class Buffers:
    """Memory for activations, kept from step to step and grown when a step is larger than all before."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self.num_moves = 0
        """How often one has grown, and so moved."""

    def get(
        self, name: str, rows: int, columns: int, dtype: torch.dtype, *, is_spaced: bool = False
    ) -> Tensor:
        """`[rows, columns]`, apart for each width; with `is_spaced`, rows may lie apart too."""
        key = name, columns, dtype
        kept = self._kept.get(key)
        if kept is None or len(kept) < rows:
            crowds = columns * dtype.itemsize % CACHE_WAY_BYTES == 0
            gap = GAP_BYTES // dtype.itemsize if is_spaced and crowds else 0
            self._kept[key] = kept = torch.empty(rows, columns + gap, dtype=dtype)[:, :columns]
            self.num_moves += 1
        return kept[:rows]
