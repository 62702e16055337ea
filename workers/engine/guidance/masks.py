"""Tokens that may not come, taken out of logits."""

from __future__ import annotations

import torch
from torch import Tensor


def mask_tokens(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """Set the logits of tokens that are not allowed to minus infinity, in place.

    `logits` `[rows, vocabulary]`; `rows` `[guided]` says which of them `masks` are for: int32 `[guided,
    vocabulary / 32, rounded up]`, a bit per token, lowest first. A NaN stays a NaN, so that it shows.
    """
    bits = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=logits.device)
    banned = (masks.view(torch.uint8)[:, :, None] & bits == 0).flatten(1)[:, : logits.shape[1]]
    found = logits.index_select(0, rows)
    logits.index_copy_(0, rows, torch.where(banned, found - torch.inf, found))
