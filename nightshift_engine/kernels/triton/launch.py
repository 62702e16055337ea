"""Launching our Triton kernels: KV memory as arguments, a step's shape as constants, tiles."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import triton
from torch import Tensor

from ..native.build import cache_directory

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton reads the same variable as it decorates a kernel, so it is set before these modules are imported."""


def keep_compiled(environment: MutableMapping[str, str]) -> None:
    """Has Triton keep what it compiles beside our own kernels, unless the environment says where.

    Call it before anything is compiled, with `os.environ`. Raises RuntimeError if there is no home directory.
    """
    if "TRITON_CACHE_DIR" not in environment:
        environment["TRITON_CACHE_DIR"] = str(cache_directory() / "triton")


keep_compiled(os.environ)

DOT_ROWS_MIN = 16
"""The smallest tile side that `tl.dot` takes."""


@dataclass(frozen=True, slots=True)
class PagedKv:
    """One layer's KV memory as the kernels see it. Scales are there if the elements are int8 or fp8."""

    keys: Tensor  # [blocks, kv_heads, block_size, key_dim]
    values: Tensor  # [blocks, kv_heads, block_size, value_dim]
    key_scales: Tensor | None = None  # [blocks, kv_heads, block_size], float32
    value_scales: Tensor | None = None

    @property
    def arguments(self) -> tuple[Tensor | int | None, ...]:
        """Memory and strides, as every attention kernel ends its arguments."""
        return (
            self.keys,
            self.values,
            self.key_scales,
            self.value_scales,
            *self.keys.stride()[:3],
            *self.values.stride()[:3],
            *self._scale_strides,
        )

    @property
    def _scale_strides(self) -> tuple[int, ...]:
        """Strides of the scales, the same for keys and values (zeros if there are none)."""
        if self.key_scales is None or self.value_scales is None:
            return 0, 0, 0
        assert self.key_scales.stride() == self.value_scales.stride(), "scales lie differently"
        return self.key_scales.stride()


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads and dimensions of one attention, with padding to what tiles can have."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    block_size: int

    @classmethod
    def of_tensors(cls, q: Tensor, kv: PagedKv) -> Shape:
        _, kv_heads, block_size, key_dim = kv.keys.shape
        heads = q.shape[1]
        assert q.stride(2) == 1, "queries must be contiguous within a head"
        assert kv.keys.stride(3) == 1, "keys must be contiguous within a head"
        assert kv.values.stride(3) == 1, "values must be contiguous within a head"
        assert heads % kv_heads == 0, f"{heads} query heads over {kv_heads} KV heads"
        return cls(heads, kv_heads, key_dim, kv.values.shape[3], block_size)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def widest(self) -> int:
        """Padded dimension of the wider of keys and values."""
        return _padded(max(self.key_dim, self.value_dim))

    @property
    def constants(self) -> dict[str, int]:
        return {
            "GROUP": self.group,
            "KEY_DIM": self.key_dim,
            "KEY_DIM_PADDED": _padded(self.key_dim),
            "VALUE_DIM": self.value_dim,
            "VALUE_DIM_PADDED": _padded(self.value_dim),
            "BLOCK_SIZE": self.block_size,
        }


@dataclass(frozen=True, slots=True)
class Tile:
    """The size of what a program takes at once, and how it is compiled."""

    rows: int  # query heads times queries
    columns: int  # keys
    num_warps: int
    num_stages: int

    @property
    def constants(self) -> dict[str, Any]:
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


def _padded(dim: int) -> int:
    return max(DOT_ROWS_MIN, int(triton.next_power_of_2(dim)))
