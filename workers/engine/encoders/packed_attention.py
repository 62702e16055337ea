"""Attention over the tokens of several inputs, which lie in rows: one after the other, or padded.

Rows are of query, key and value beside one another, for all heads.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Attention(Protocol):
    """How the inputs of one pass lie in its rows."""

    @property
    def starts(self) -> Tensor:
        """The row of each input's first token, int64 `[inputs]`."""

    def rows_of(self, hidden: Tensor) -> Tensor:
        """`[rows, dimensions]`, of `[inputs, tokens, dimensions]`."""

    def padded(self, rows: Tensor) -> Tensor:
        """The other way round. Padding means nothing."""

    def attend(self, qkv: Tensor, out: Tensor) -> None:
        """Write the context of all rows, from `[rows, 3 x dimensions]`, to `out` `[rows, dimensions]`."""

    def attend_from_first(self, query: Tensor, key_value: Tensor) -> Tensor:
        """The context of the first tokens alone, `[inputs, dimensions]`: their query, and `key_value` of all
        rows, `[rows, 2 x dimensions]`.
        """


class PaddedAttention:
    """With padding, and one attention for all inputs."""

    def __init__(self, is_token: Tensor, num_heads: int) -> None:
        """`is_token`: bool `[inputs, tokens]`."""
        self._shape = is_token.shape
        self._num_heads = num_heads
        self._visible = None if bool(is_token.all()) else is_token[:, None, None, :]

    @property
    def starts(self) -> Tensor:
        inputs, tokens = self._shape
        return torch.arange(inputs) * tokens

    def rows_of(self, hidden: Tensor) -> Tensor:
        return hidden.reshape(-1, hidden.shape[-1]).contiguous()

    def padded(self, rows: Tensor) -> Tensor:
        return rows.view(*self._shape, -1)

    def attend(self, qkv: Tensor, out: Tensor) -> None:
        query, key, value = self._by_heads(qkv, 3)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=self._visible)
        out.view(*self._shape, self._num_heads, -1).copy_(context.transpose(1, 2))

    def attend_from_first(self, query: Tensor, key_value: Tensor) -> Tensor:
        key, value = self._by_heads(key_value, 2)
        first = query.view(len(query), self._num_heads, 1, -1)
        context = F.scaled_dot_product_attention(first, key, value, attn_mask=self._visible)
        return context.reshape(len(query), -1)

    def _by_heads(self, rows: Tensor, count: int) -> tuple[Tensor, ...]:
        """`[inputs, heads, tokens, …]` each."""
        return rows.view(*self._shape, count, self._num_heads, -1).permute(2, 0, 3, 1, 4).unbind()


class SeparateAttention:
    """Without padding, one input's tokens after the other's, and an attention for each."""

    def __init__(self, is_token: Tensor, num_heads: int) -> None:
        """`is_token`: bool `[inputs, tokens]`."""
        self._is_token = is_token
        self._lengths: list[int] = is_token.sum(1).tolist()
        self._num_heads = num_heads

    @property
    def starts(self) -> Tensor:
        lengths = torch.tensor(self._lengths)
        return lengths.cumsum(0) - lengths

    def rows_of(self, hidden: Tensor) -> Tensor:
        return hidden[self._is_token]

    def padded(self, rows: Tensor) -> Tensor:
        vectors = rows.new_zeros(*self._is_token.shape, rows.shape[1])
        vectors[self._is_token] = rows
        return vectors

    def attend(self, qkv: Tensor, out: Tensor) -> None:
        for own, into in zip(self._each(qkv), self._each(out), strict=True):
            query, key, value = self._by_heads(own, 3)
            context = F.scaled_dot_product_attention(query, key, value)
            into.view(1, len(own), self._num_heads, -1).copy_(context.transpose(1, 2))

    def attend_from_first(self, query: Tensor, key_value: Tensor) -> Tensor:
        out = torch.empty_like(query)
        for first, own, into in zip(query, self._each(key_value), out, strict=True):
            key, value = self._by_heads(own, 2)
            context = F.scaled_dot_product_attention(first.view(1, self._num_heads, 1, -1), key, value)
            into.copy_(context.flatten())
        return out

    def _each(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, self._lengths)

    def _by_heads(self, rows: Tensor, count: int) -> tuple[Tensor, ...]:
        """`[1, heads, tokens, …]` each."""
        return rows.view(1, len(rows), count, self._num_heads, -1).permute(2, 0, 3, 1, 4).unbind()
