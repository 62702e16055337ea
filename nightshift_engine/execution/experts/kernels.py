"""`kernels/native/experts.cpp`, called with tensors, and the rules of routers that it knows."""

import ctypes
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...kernels.native.build import load_kernels
from ..device.native_calls import FIXED_ORDER, invoke

Scoring = Literal["softmax", "sigmoid"]
"""Function of all of a token's logits. (A softmax of the chosen ones alone is that of all, renormalised.)"""
GroupScoring = Literal["largest", "two largest"]
"""A group is as good as its best expert, or as the sum of its two best."""
_SCORINGS: dict[Scoring, int] = {"softmax": 0, "sigmoid": 1}
_GROUP_SCORINGS: dict[GroupScoring, int] = {"largest": 0, "two largest": 1}


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A rule from a token's logits to its experts and their weights.

    The experts with the highest scores, to which a correction may be added before, are chosen; those of the
    best groups only, if there are groups (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). An expert's weight
    is `factor` times its score, which `renormalises` divides by the sum of the chosen ones'.
    """

    experts: int
    choices: int
    scoring: Scoring
    renormalises: bool
    factor: float = 1.0
    groups: int = 1
    groups_kept: int = 1
    group_scoring: GroupScoring = "largest"

    @property
    def is_valid(self) -> bool:
        """Whether the groups divide the experts, and leave as many as are chosen."""
        return (
            self.experts % self.groups == 0
            and 1 <= self.groups_kept <= self.groups
            and self.choices <= self.groups_kept * (self.experts // self.groups)
        )


class _ChooseCall(ctypes.Structure):
    """`ChooseCall` of experts.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "correction", "chosen", "weights")),
        *((name, ctypes.c_int64) for name in ("tokens", "experts", "choices", "logits_stride")),
        *((name, ctypes.c_int64) for name in ("groups", "groups_kept")),
        *((name, ctypes.c_int32) for name in ("logits_are_bfloat16", "scoring", "group_scoring")),
        *((name, ctypes.c_int32) for name in ("renormalises", "keeps_choice")),
        ("factor", ctypes.c_float),
    )


class _SortCall(ctypes.Structure):
    """`SortCall` of experts.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "sorted", "chosen", "starts", "places")),
        *((name, ctypes.c_int64) for name in ("tokens", "choices", "experts")),
        *((name, ctypes.c_int64) for name in ("row_bytes", "x_stride", "sorted_stride")),
    )


class _CombineCall(ctypes.Structure):
    """`CombineCall` of experts.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "places", "weights", "shared", "gates", "out")),
        *((name, ctypes.c_int64) for name in ("tokens", "choices", "n")),
        ("adds", ctypes.c_int32),
        ("factor", ctypes.c_float),
    )


class ExpertKernels:
    """Kernels for what a mixture does before its experts, between them and after them.

    `tokens` are rows; `choices` is how many experts a token has. Numbers of experts and rows are int64.
    """

    def __init__(self) -> None:
        kernels: Any = load_kernels("experts", FIXED_ORDER)
        self._choose, self._sort = kernels.choose_experts, kernels.sort_by_expert
        self._combine = kernels.combine_choices
        kernels.experts_max.restype = ctypes.c_int64
        self.experts_max: int = kernels.experts_max()
        """A mixture of more is not computed."""

    def choose(
        self,
        rule: RoutingRule,
        logits: Tensor,
        correction: Tensor | None,
        chosen: Tensor,
        weights: Tensor,
        *,
        keeps_choice: bool = False,
    ) -> None:
        """The best experts of each row of `logits`, or with `keeps_choice` the chosen ones, and weights."""
        assert rule.is_valid, f"{rule} cannot be"
        assert rule.experts == logits.shape[1] <= self.experts_max, f"{logits.shape[1]} logits for {rule}"
        call = _ChooseCall(
            logits=logits.data_ptr(),
            correction=None if correction is None else correction.data_ptr(),
            chosen=chosen.data_ptr(),
            weights=weights.data_ptr(),
            tokens=len(logits),
            experts=rule.experts,
            choices=rule.choices,
            logits_stride=logits.stride(0),
            groups=rule.groups,
            groups_kept=rule.groups_kept,
            logits_are_bfloat16=logits.dtype == torch.bfloat16,
            scoring=_SCORINGS[rule.scoring],
            group_scoring=_GROUP_SCORINGS[rule.group_scoring],
            renormalises=rule.renormalises,
            keeps_choice=keeps_choice,
            factor=rule.factor,
        )
        invoke(self._choose, call)

    def sort(self, x: Tensor, chosen: Tensor, out: Tensor, starts: Tensor, places: Tensor) -> None:
        """Rows of `x` in the order of their experts, a row per choice, to `out` `[tokens * choices, n]`.

        Expert e has rows `starts[e]` to `starts[e + 1]`; `places` `[tokens, choices]` says where each went.
        """
        tokens, choices = chosen.shape
        assert len(starts) - 1 <= self.experts_max, f"{len(starts) - 1} experts are too many"
        call = _SortCall(
            x=x.data_ptr(),
            sorted=out.data_ptr(),
            chosen=chosen.data_ptr(),
            starts=starts.data_ptr(),
            places=places.data_ptr(),
            tokens=tokens,
            choices=choices,
            experts=len(starts) - 1,
            row_bytes=x.shape[1] * x.element_size(),
            x_stride=x.stride(0) * x.element_size(),
            sorted_stride=out.stride(0) * out.element_size(),
        )
        invoke(self._sort, call)

    def combine(
        self,
        y: Tensor,
        places: Tensor,
        weights: Tensor,
        out: Tensor,
        *,
        shared: Tensor | None = None,
        gates: Tensor | None = None,
        factor: float | None = None,
    ) -> None:
        """Writes each token's weighted sum of its rows of `y`, and `shared` by sigmoids of `gates`, to
        `out`.
        """
        assert y.is_contiguous(), "rows lie together"
        assert out.is_contiguous(), "rows lie together"
        call = _CombineCall(
            y=y.data_ptr(),
            places=places.data_ptr(),
            weights=weights.data_ptr(),
            shared=None if shared is None else shared.data_ptr(),
            gates=None if gates is None else gates.data_ptr(),
            out=out.data_ptr(),
            tokens=len(out),
            choices=places.shape[1],
            n=y.shape[1],
            adds=factor is not None,
            factor=factor or 0.0,
        )
        invoke(self._combine, call)
