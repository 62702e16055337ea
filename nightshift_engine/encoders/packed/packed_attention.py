"""Attention over the tokens of several inputs, which lie in rows: one after the other, or padded.

Rows are of query, key and value beside one another, for all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...execution.attention.input_attention import DTYPES, InputAttention

SEPARATE_TOKENS_MIN = 64
"""From this length on, one attention for each input costs less than padding and a mask."""


class Attention(Protocol):
    """How the inputs of one pass lie in its rows."""

    @property
    def starts(self) -> Tensor:
        """The row of each input's first token, int64 `[inputs]`."""

    def rows_of(self, hidden: Tensor) -> Tensor:
        """`[rows, dimensions]`, of `[inputs, tokens, dimensions]`; contiguous."""

    def padded(self, rows: Tensor) -> Tensor:
        """The other way round. Padding means nothing."""

    def attend(self, qkv: Tensor, out: Tensor) -> None:
        """Write the context of all rows, from `[rows, 3 x dimensions]`, to `out` `[rows, dimensions]`."""

    def attend_from_first(self, query: Tensor, key_value: Tensor, out: Tensor) -> None:
        """The context of the first tokens alone, to `out` `[inputs, dimensions]`: their query, and
        `key_value` of all rows, `[rows, 2 x dimensions]`.
        """


def attention_over(is_token: Tensor, num_heads: int, dtype: torch.dtype) -> Attention:
    """The fastest there is here. `is_token`: bool `[inputs, tokens]`."""
    if dtype in DTYPES and InputAttention.is_available():
        return KernelAttention(is_token, num_heads)
    if is_token.shape[1] < SEPARATE_TOKENS_MIN:
        return PaddedAttention(is_token, num_heads)
    return SeparateAttention(is_token, num_heads)


class KernelAttention:
    """Without padding, one input's tokens after the other's, by our own kernel."""

    def __init__(self, is_token: Tensor, num_heads: int) -> None:
        """`is_token`: bool `[inputs, tokens]`."""
        self._is_token = None if bool(is_token.all()) else is_token
        self._shape = is_token.shape
        self._ends = torch.zeros(len(is_token) + 1, dtype=torch.int64)
        torch.cumsum(is_token.sum(1), 0, out=self._ends[1:])
        self._num_heads = num_heads
        self._attend = InputAttention()

    @property
    def starts(self) -> Tensor:
        return self._ends[:-1]

    def rows_of(self, hidden: Tensor) -> Tensor:
        if self._is_token is None:
            return hidden.reshape(-1, hidden.shape[-1]).contiguous()
        return hidden[self._is_token]

    def padded(self, rows: Tensor) -> Tensor:
        if self._is_token is None:
            return rows.reshape(*self._shape, -1)
        vectors = rows.new_zeros(*self._shape, rows.shape[1])
        vectors[self._is_token] = rows
        return vectors

    def attend(self, qkv: Tensor, out: Tensor) -> None:
        query, key, value = qkv.chunk(3, dim=1)
        self._run(query, key, value, out, self._ends)

    def attend_from_first(self, query: Tensor, key_value: Tensor, out: Tensor) -> None:
        key, value = key_value.chunk(2, dim=1)
        self._run(query, key, value, out, torch.arange(len(query) + 1))

    def _run(self, query: Tensor, key: Tensor, value: Tensor, out: Tensor, query_starts: Tensor) -> None:
        head_dim = out.shape[1] // self._num_heads
        self._attend(
            query, key, value, out, query_starts=query_starts, key_starts=self._ends, head_dim=head_dim
        )


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
        return rows.reshape(*self._shape, -1)

    def attend(self, qkv: Tensor, out: Tensor) -> None:
        query, key, value = self._by_heads(qkv, 3)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=self._visible)
        _by_inputs(out, self._shape, self._num_heads).copy_(context.transpose(1, 2))

    def attend_from_first(self, query: Tensor, key_value: Tensor, out: Tensor) -> None:
        key, value = self._by_heads(key_value, 2)
        first = _by_inputs(query, (len(query), 1), self._num_heads).transpose(1, 2)
        context = F.scaled_dot_product_attention(first, key, value, attn_mask=self._visible)
        out.copy_(context.flatten(1))

    def _by_heads(self, rows: Tensor, count: int) -> tuple[Tensor, ...]:
        """`[inputs, heads, tokens, …]` each."""
        parts = rows.chunk(count, dim=1)
        return tuple(_by_inputs(part, self._shape, self._num_heads).transpose(1, 2) for part in parts)


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
            _by_inputs(into, (1, len(own)), self._num_heads).copy_(context.transpose(1, 2))

    def attend_from_first(self, query: Tensor, key_value: Tensor, out: Tensor) -> None:
        for first, own, into in zip(query, self._each(key_value), out, strict=True):
            key, value = self._by_heads(own, 2)
            context = F.scaled_dot_product_attention(first.view(1, self._num_heads, 1, -1), key, value)
            into.copy_(context.flatten())

    def _each(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, self._lengths)

    def _by_heads(self, rows: Tensor, count: int) -> tuple[Tensor, ...]:
        """`[1, heads, tokens, …]` each."""
        parts = rows.chunk(count, dim=1)
        return tuple(_by_inputs(part, (1, len(rows)), self._num_heads).transpose(1, 2) for part in parts)


def _by_inputs(rows: Tensor, shape: Sequence[int], heads: int) -> Tensor:
    """`[inputs, tokens, heads, head_dim]` of rows, which may lie apart. `shape`: inputs, tokens."""
    return rows.view(*shape, heads, -1)
