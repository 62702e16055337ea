"""Memory for activations, kept from step to step."""

from __future__ import annotations

import torch
from torch import Tensor


class Buffers:
    """Memory for activations, kept from step to step and grown when a step is larger than all before."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self.num_moves = 0
        """How often one has grown, and so moved."""

    def get(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or len(kept) < rows:
            self._kept[name] = kept = torch.empty(rows, columns, dtype=dtype)
            self.num_moves += 1
        return kept[:rows]
