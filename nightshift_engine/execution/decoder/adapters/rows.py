"""The rows of a step that adapters change, those of one slot together."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE_ROWS = 16
"""Rows that a kernel takes at once: the smallest tile side of Triton's `dot`."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows as the kernels read them."""

    rows: Tensor
    """int32 `[rows]`: rows of the step that have an adapter, those of one slot together."""
    tiles: Tensor
    """int32 `[tiles, 3]`: a slot, the first of its rows in `rows`, and how many, at most `TILE_ROWS`."""


@dataclass(frozen=True, slots=True)
class HostAdapterRows:
    """The same on the host."""

    rows: NDArray[np.int32]
    tiles: NDArray[np.int32]

    def on(self, device: torch.device) -> AdapterRows:
        return AdapterRows(torch.from_numpy(self.rows).to(device), torch.from_numpy(self.tiles).to(device))


def one_tile(count: int) -> HostAdapterRows:
    """The first rows of a step, as those of an adapter in slot 0."""
    return HostAdapterRows(np.arange(count, dtype=np.int32), np.array([[0, 0, count]], dtype=np.int32))


def group_rows(slots: Seq[int], counts: NDArray[np.int64]) -> HostAdapterRows | None:
    """The rows of sequences with these `slots` (-1: no adapter) and `counts` of rows, one after the other.

    None where no sequence has an adapter.
    """
    if max(slots, default=-1) < 0:
        return None
    by_row = np.repeat(np.array(slots, dtype=np.int64), counts)
    rows = np.argsort(by_row, kind="stable")[np.count_nonzero(by_row < 0) :]
    used, starts, lengths = np.unique(by_row[rows], return_index=True, return_counts=True)
    tiles = [
        (slot, start + first, min(TILE_ROWS, length - first))
        for slot, start, length in zip(used.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        for first in range(0, length, TILE_ROWS)
    ]
    return HostAdapterRows(rows.astype(np.int32), np.array(tiles, dtype=np.int32))
