"""Weights in the order in which `kernels/native/linear.cpp` reads them: zero-padded panels of columns."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .interface import Activation

PANEL_COLUMNS = 32
GATED_COLUMNS = 16
"""A gated panel holds so many columns of the gate, then the same columns of what it gates."""


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[n, k]` as int8 in [-127, 127] and float32 scales `[n]`: symmetric, one scale a row."""
    scales = (weight.abs().amax(dim=1).float() / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight.float() / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


CHECKED_ROWS = 4096


def are_bfloat16(weight: Tensor) -> bool:
    """Whether bfloat16 holds every number of a float32 `[.., k]` exactly, as of a checkpoint stored in it."""
    if weight.dtype != torch.float32:
        return weight.dtype == torch.bfloat16
    bits = weight.flatten(0, -2).view(torch.int32)
    parts = (bits[first : first + CHECKED_ROWS] for first in range(0, len(bits), CHECKED_ROWS))
    return not any((part & 0xFFFF).any() for part in parts)  # for most others the first part tells


def arrange(rows: Tensor, gate: Activation | None) -> Tensor:
    """Rows in the order of packed columns, padded with zeros to whole panels."""
    if gate is None:
        return _pad_rows(rows, PANEL_COLUMNS)
    halves = [_pad_rows(half, GATED_COLUMNS) for half in rows.chunk(2)]
    woven = torch.stack([half.view(-1, GATED_COLUMNS, rows.shape[1]) for half in halves], dim=1)
    return woven.view(-1, rows.shape[1])


def _pad_rows(rows: Tensor, multiple: int) -> Tensor:
    missing = -rows.shape[0] % multiple
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def to_panels(weight: Tensor, group: int) -> Tensor:
    """`[n, k]` to `[n / 32, k / group, 32, group]`, moved as words of four bytes."""
    words = weight.contiguous().view(torch.int32 if group > 1 else weight.dtype)
    return words.view(-1, PANEL_COLUMNS, words.shape[1]).transpose(1, 2).contiguous()
