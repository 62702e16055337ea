"""Tokens that may not come, taken out of logits."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def mask_tokens(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """Set the logits of tokens that are not allowed to minus infinity, in place.

    `logits` `[rows, vocabulary]`, float32; `rows` `[guided]` says whose `masks` are: int32 `[guided,
    vocabulary / 32, rounded up]`, a bit per token, lowest first. A NaN stays a NaN, so that it shows.
    """
    by_bytes = masks.view(torch.uint8).flatten().int()
    added = _added_by_byte(logits.device).index_select(0, by_bytes).view(len(masks), -1)
    logits.index_add_(0, rows, added[:, : logits.shape[1]])


@cache
def _added_by_byte(device: torch.device) -> Tensor:
    """What eight tokens' logits are changed by, for each value of their byte: float32 `[256, 8]`."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits.bool(), 0.0, -torch.inf).to(device)
