"""A weight in fewer bits than are computed with: codes, and scales by which groups of them are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

Code = Literal["int4", "int8", "fp8", "fp4"]
"""int4: -8 to 7, stored as 0 to 15. fp8 is e4m3fn. fp4 is e2m1, as in OCP's Microscaling Formats 1.0."""
CODE_BITS: dict[Code, int] = {"int4": 4, "int8": 8, "fp8": 8, "fp4": 4}
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
FP8_MAX = 448.0
"""The largest number of e4m3fn."""


@dataclass(frozen=True, slots=True)
class NarrowWeight:
    """The numbers `(value of the code - zero) * scale` of a weight `[.., n, k]`."""

    code: Code
    codes: Tensor
    """`[.., n, k]` int8 or fp8; of four bits `[.., n, k / 2]` uint8, the even column in the lower half."""
    scales: Tensor
    """`[.., n, groups]`, of any floating dtype."""
    zeros: Tensor | None
    """`[.., n, groups]` int16, in units of the codes' values. None: all are 0."""
    group_size: int
    """Columns of a group; the last may have fewer."""
    groups: Tensor | None = None
    """`[k]`: each column's group, where a group's columns do not lie together (GPTQ's act order)."""
    rounds_inputs: bool = False
    """Inputs may be rounded to the same code, a row at a time, where a device multiplies such numbers."""

    def __deepcopy__(self, _: Any) -> NarrowWeight:
        return self  # nothing is ever written to

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight itself."""
        per_element = 8 // CODE_BITS[self.code]
        return (*self.codes.shape[:-1], self.codes.shape[-1] * per_element)

    @property
    def num_bytes(self) -> int:
        """Bytes of all it consists of."""
        parts = (self.codes, self.scales, self.zeros, self.groups)
        return sum(part.nbytes for part in parts if part is not None)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight, computed in float32 and rounded once: `[.., n, k]`, contiguous."""
        groups = self.groups
        if groups is None:
            groups = torch.arange(self.shape[-1], device=self.codes.device) // self.group_size
        values = self._values()
        if self.zeros is not None:
            values -= self.zeros.index_select(-1, groups)
        values *= self.scales.float().index_select(-1, groups)
        return values.to(dtype)

    def _values(self) -> Tensor:
        """The codes' values as new float32."""
        match self.code:
            case "int8" | "fp8":
                return self.codes.float()
            case "int4":
                return self._halves().float().sub_(8)
            case "fp4":
                return torch.tensor(FP4_VALUES, device=self.codes.device)[self._halves().int()]

    def _halves(self) -> Tensor:
        return torch.stack([self.codes & 15, self.codes >> 4], dim=-1).flatten(-2)

    def to(self, device: torch.device) -> NarrowWeight:
        """The same on a device."""
        return self._mapped(lambda part: part.to(device), lambda groups: groups.to(device))

    def rows(self, order: Tensor) -> NarrowWeight:
        """Rows in another order, or some of them."""
        return self._mapped(lambda part: part[order.to(part.device)], lambda groups: groups)

    def _mapped(self, of_rows: Any, of_columns: Any) -> NarrowWeight:
        return replace(
            self,
            codes=of_rows(self.codes),
            scales=of_rows(self.scales),
            zeros=None if self.zeros is None else of_rows(self.zeros),
            groups=None if self.groups is None else of_columns(self.groups),
        )


def join_rows(weights: Sequence[NarrowWeight]) -> NarrowWeight | None:
    """Several weights over the same inputs as one, row after row; None if they differ in kind."""
    first = weights[0]
    if any(not _are_alike(first, weight) for weight in weights[1:]):
        return None
    if len(weights) == 1:
        return first
    zeros = [weight.zeros for weight in weights if weight.zeros is not None]
    return replace(
        first,
        codes=torch.cat([weight.codes for weight in weights]),
        scales=torch.cat([weight.scales for weight in weights]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def _are_alike(a: NarrowWeight, b: NarrowWeight) -> bool:
    return (
        (
            a.code,
            a.rounds_inputs,
            a.group_size,
            a.zeros is None,
            a.groups is None,
            a.scales.dtype,
            a.shape[1:],
        )
        == (
            b.code,
            b.rounds_inputs,
            b.group_size,
            b.zeros is None,
            b.groups is None,
            b.scales.dtype,
            b.shape[1:],
        )
    ) and (a.groups is None or b.groups is None or torch.equal(a.groups, b.groups))


def pack_halves(values: Tensor) -> Tensor:
    """Codes 0 to 15 `[.., k]` as uint8 `[.., k / 2]`, the even column in the lower half."""
    return values[..., ::2] | (values[..., 1::2] << 4)


INT4_GROUP_SIZES = (128, 64, 32)
"""Sizes of groups that weights are rounded in, the first that divides a layer's inputs."""


def round_weight(weight: Tensor, code: Code) -> NarrowWeight | None:
    """A weight `[n, k]` rounded to the nearest codes; None where no size of groups divides its inputs.

    int4: a scale and a zero per group of a row, so that its largest and smallest number, and 0, are codes.
    int8 and fp8: a scale per row.
    """
    n, k = weight.shape
    weight = weight.detach().float()
    tiny = torch.finfo(torch.float32).tiny
    if code == "int4":
        size = next((size for size in INT4_GROUP_SIZES if k % size == 0), None)
        if size is None:
            return None
        grouped = weight.view(n, k // size, size)
        low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
        scales = ((high - low) / 15).clamp(min=tiny)
        zeros = (-low / scales).round()
        codes = (grouped / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
        packed = pack_halves(codes.view(n, k).to(torch.uint8))
        return NarrowWeight("int4", packed, scales, (zeros - 8).to(torch.int16), size)
    largest = 127.0 if code == "int8" else FP8_MAX
    scales = (weight.abs().amax(dim=1, keepdim=True) / largest).clamp(min=tiny)
    scaled = weight / scales
    rounded = scaled.round().to(torch.int8) if code == "int8" else scaled.to(torch.float8_e4m3fn)
    return NarrowWeight(code, rounded, scales, None, k, rounds_inputs=code == "fp8")
