"""Attention over the tokens of whole inputs, each over its own, by our own kernel or by torch."""

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER, invoke

DTYPES = (torch.float32, torch.bfloat16)


class _Call(ctypes.Structure):
    """`InputAttentionCall` of the kernel, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "out", "query_starts", "key_starts")),
        *((f"{name}_stride", ctypes.c_int64) for name in ("query", "key", "value", "out")),
        *((name, ctypes.c_int64) for name in ("num_inputs", "num_heads", "head_dim")),
        ("is_bfloat16", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class InputAttention:
    """Every query sees every key of its own input. An input's result does not depend on the others."""

    def __init__(self) -> None:
        kernels: Any = load_kernels("input_attention", FIXED_ORDER)
        assert kernels is not None, "there is no kernel here; ask is_available first"
        self._attend = kernels.input_attention

    @staticmethod
    def is_available() -> bool:
        return load_kernels("input_attention", FIXED_ORDER) is not None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        *,
        query_starts: Tensor,
        key_starts: Tensor,
        head_dim: int,
    ) -> None:
        """Rows `[rows, heads * head_dim]` to `out`, of one dtype of `DTYPES`.

        `query_starts` and `key_starts`: where the rows of each input begin and the last one's end, int64
        `[inputs + 1]`. Raises MemoryError.
        """
        assert query.dtype in DTYPES, f"the kernel reads no {query.dtype}"
        assert query.dtype == key.dtype == value.dtype == out.dtype, "rows are of one dtype"
        assert all(rows.stride(1) == 1 for rows in (query, key, value, out)), "a row's elements lie together"
        call = _Call(
            *(tensor.data_ptr() for tensor in (query, key, value, out, query_starts, key_starts)),
            *(rows.stride(0) for rows in (query, key, value, out)),
            num_inputs=len(query_starts) - 1,
            num_heads=query.shape[1] // head_dim,
            head_dim=head_dim,
            is_bfloat16=query.dtype == torch.bfloat16,
            scale=head_dim**-0.5,
        )
        invoke(self._attend, call)


SEPARATE_TOKENS_MIN = 64
"""Tokens from which on one attention for each input costs less than padding and a mask."""


class PassAttention(Protocol):
    """Attention over the rows of one pass."""

    @property
    def starts(self) -> Tensor:
        """The row of each input's first token, int64 `[inputs]`."""

    def attend(self, qkv: Tensor, out: Tensor) -> None:
        """Writes the context of all rows, from `[rows, 3 x dimensions]`, to `out` `[rows, dimensions]`."""

    def attend_from_first(self, query: Tensor, key_value: Tensor, out: Tensor) -> None:
        """Writes the context of first tokens alone to `out` `[inputs, dimensions]`.

        `query` is theirs, `key_value` that of all rows, `[rows, 2 x dimensions]`.
        """


class PaddedInputs(PassAttention, Protocol):
    """Attention over inputs that come padded, and the way from them to rows and back."""

    def rows_of(self, hidden: Tensor) -> Tensor:
        """`[rows, dimensions]`, of `[inputs, tokens, dimensions]`; contiguous."""

    def padded(self, rows: Tensor) -> Tensor:
        """The other way round. Padding means nothing."""


def attention_over(is_token: Tensor, num_heads: int, dtype: torch.dtype) -> PaddedInputs:
    """The fastest there is here. `is_token`: bool `[inputs, tokens]`."""
    if dtype in DTYPES and InputAttention.is_available():
        return KernelAttention(is_token, num_heads)
    if is_token.shape[1] < SEPARATE_TOKENS_MIN:
        return PaddedAttention(is_token, num_heads)
    return SeparateAttention(is_token, num_heads)


class RaggedAttention:
    """Attention of inputs without padding, one input's tokens after the other's, by our own kernel."""

    def __init__(self, ends: Tensor, num_heads: int) -> None:
        """`ends`: where the rows of each input begin, and the last one's end, int64 `[inputs + 1]`."""
        self._ends, self._num_heads = ends, num_heads
        self._attend = InputAttention()

    @property
    def starts(self) -> Tensor:
        return self._ends[:-1]

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


class KernelAttention(RaggedAttention):
    """The same of inputs that come padded."""

    def __init__(self, is_token: Tensor, num_heads: int) -> None:
        """`is_token`: bool `[inputs, tokens]`."""
        self._is_token = None if bool(is_token.all()) else is_token
        self._shape = is_token.shape
        ends = torch.zeros(len(is_token) + 1, dtype=torch.int64)
        torch.cumsum(is_token.sum(1), 0, out=ends[1:])
        super().__init__(ends, num_heads)

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


class PaddedAttention:
    """Attention over padded inputs, all at once."""

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
    """Attention over inputs without padding: one input's tokens after the other's, and an attention for
    each.
    """

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
