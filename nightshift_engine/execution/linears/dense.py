"""Linear layers by torch's own matrix products, on whatever device the weights are: cuBLAS on CUDA.

What follows a product, an activation or a gate, is our Triton kernel.
"""

import functools

import torch
from torch import Tensor

from .interface import Activation, Packing

_addmm_wide = torch.ops.aten.addmm.dtype_out
_mm_wide = torch.ops.aten.mm.dtype_out


class DenseLinear:
    """Several layers over the same input are one, in the dtype of their weights; sums are float32."""

    can_be_written_down = False

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation | None = None,
        gate: Activation | None = None,
    ) -> None:
        n, self.in_features = weight.shape
        self.out_features = n // 2 if gate else n
        self.product_features, self.product_dtype = n, weight.dtype
        self._weight = weight.contiguous().T  # [k, n]
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._activation = gate or activation
        if self._activation is not None:
            from ...kernels.triton.rows import activate  # imports triton, which is not everywhere

            self._activate = activate
        self._is_wide = weight.dtype != torch.float32 and writes_float32(weight.device, weight.dtype)

    def store(self, x: Tensor, out: Tensor) -> None:
        if self._activation is None:
            self.multiply(x, out)
            return
        product = x.new_empty(len(x), self.product_features)
        self.multiply(x, product)
        self.activate(product, out)

    def activate(self, product: Tensor, out: Tensor) -> None:
        assert self._activation is not None, "there is nothing to do"
        self._activate(product, self._activation, out)

    def add_to(self, x: Tensor, out: Tensor, factor: float = 1.0) -> None:
        assert self._activation is None, "a layer with an activation cannot add"
        assert out.dtype == torch.float32, f"adds to float32, not {out.dtype}"
        if x.dtype == out.dtype:
            torch.addmm(out, x, self._weight, alpha=factor, out=out)
        elif self._is_wide:
            _addmm_wide(out, x, self._weight, out.dtype, beta=1, alpha=factor, out=out)
        else:
            out.add_(x @ self._weight, alpha=factor)
        if self._bias is not None:
            out.add_(self._bias, alpha=factor)

    def multiply(self, x: Tensor, out: Tensor) -> None:
        if out.dtype == x.dtype:
            if self._bias is None:
                torch.mm(x, self._weight, out=out)
            else:
                torch.addmm(self._bias, x, self._weight, out=out)
            return
        if self._is_wide:
            _mm_wide(x, self._weight, out.dtype, out=out)
        else:
            out.copy_(x @ self._weight)
        if self._bias is not None:
            out.add_(self._bias)


def dense_packing() -> Packing:
    """Everything but experts, which stay as they are."""
    return Packing(DenseLinear, DenseLinear)


@functools.cache
def writes_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch writes products of `dtype` as float32, and adds them to float32, on this device."""
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    sums = torch.ones(16, 16, device=device)
    try:
        _mm_wide(ones, ones, sums.dtype, out=torch.empty_like(sums))
        _addmm_wide(sums, ones, ones, sums.dtype, beta=1, alpha=2, out=sums)
    except (RuntimeError, NotImplementedError):
        return False
    return bool((sums == 33).all())
