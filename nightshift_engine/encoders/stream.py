"""The rows that pass an encoder's layers, and their norms: by our own kernels where there are some.

A pass computed by them alone has one team of threads; torch's operators between them would have another.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LayerNorm

from ..execution.decoder.buffers import Buffers
from ..execution.decoder.kernels import DecoderKernels
from ..execution.decoder.weights import Norm
from ..execution.linears.interface import Linear, Pack


class RowNorm:
    """A layer norm of float32 rows, or with None nothing but another dtype."""

    def __init__(self, norm: LayerNorm | None) -> None:
        self._norm = None if norm is None else _norm(norm)
        self._kernels = DecoderKernels() if DecoderKernels.are_available() else None

    def store(self, x: Tensor, out: Tensor, rows: Tensor | None = None) -> None:
        """Rows of `x`, float32, all or those given, to `out`, in its dtype; it may be `x`."""
        if self._kernels is not None:
            self._kernels.norm(x, rows, self._norm, out)
            return
        x = x if rows is None else x[rows]
        if self._norm is None:
            out.copy_(x)
        else:
            out.copy_(F.layer_norm(x, x.shape[1:], self._norm.weight, self._norm.bias, self._norm.eps))


def _norm(norm: LayerNorm) -> Norm:
    weight, bias = (None if each is None else each.float().contiguous() for each in (norm.weight, norm.bias))
    return Norm("layer", weight, bias, norm.eps)


class Stream:
    """The rows of one pass: what layers have added up, float32, and that as a linear layer reads it."""

    def __init__(self, rows: Tensor, dtype: torch.dtype, buffers: Buffers, name: str = "rows") -> None:
        """`rows` `[rows, dimensions]`, contiguous; those of float32 are overwritten. `dtype`: of what linear
        layers read.
        """
        self.sums = rows.float()
        self.dtype = dtype
        self._buffers, self._name = buffers, name

    def rounded(self) -> Tensor:
        """The sums as a linear layer reads them."""
        out = self._buffer()
        if out is not self.sums:
            RowNorm(None).store(self.sums, out)
        return out

    def add(self, linear: Linear, x: Tensor) -> None:
        linear.add_to(x, self.sums)

    def norm(self, norm: RowNorm) -> Tensor:
        """Norm the sums; they as a linear layer reads them."""
        out = self._buffer()
        if out is not self.sums:
            norm.store(self.sums, out)
        norm.store(self.sums, self.sums)
        return out

    def normed(self, norm: RowNorm) -> Tensor:
        """The sums with a norm, as a linear layer reads them. They stay as they are."""
        out = self._spaced()
        norm.store(self.sums, out)
        return out

    def _buffer(self) -> Tensor:
        """The sums themselves, where they have the dtype and may lie together."""
        out = self._spaced()
        return self.sums if self.dtype == torch.float32 and out.is_contiguous() else out

    def _spaced(self) -> Tensor:
        rows, columns = self.sums.shape
        return self._buffers.get(self._name, rows, columns, self.dtype, is_spaced=True)


def packed(pack: Pack, *parts: Any) -> Linear:
    """Several layers of the same rows as one."""
    biases = [part.bias for part in parts]
    bias = None if biases[0] is None else torch.cat(biases)
    return pack(torch.cat([part.weight for part in parts]), bias)


def buffer_for(buffers: Buffers, name: str, rows: Tensor, columns: int) -> Tensor:
    """As many rows as `rows`, in their dtype."""
    return buffers.get(name, len(rows), columns, rows.dtype, is_spaced=True)
