"""Which norm a module computes: tried on numbers that tell the kinds apart, not read from its name."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ..weights import NormKind
from .facts import NormFacts, NotPlain
from .trace import ModuleCall
from .values import close

EPS_MAX = 1e-2
EPS_USUAL = (1e-5, 1e-6)
"""Tried where a module does not keep its epsilon."""
SCALES = (2.0, 2e-3)
"""Of the numbers tried. The smaller one makes epsilon count."""
KINDS: tuple[NormKind, ...] = ("rms", "layer")


def core(x: Tensor, kind: NormKind, eps: float) -> Tensor:
    """The norm over the last dimension, without weight and bias."""
    if kind == "layer":
        x = x - x.mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def recognise_norm(call: ModuleCall) -> NormFacts:
    """The norm that `call.module` computes on tensors like those of the call. Raises `NotPlain`."""
    module = copy.deepcopy(call.module).float().cpu()
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    generator = torch.Generator().manual_seed(0)
    tries = [scale * (torch.randn(call.x.shape, generator=generator) + 1) for scale in SCALES]
    wanted = [module(x) for x in tries]
    for kind in KINDS:
        for eps in _epsilons(module):
            for adds_one in (False, True):
                norm = [_affine(core(x, kind, eps), weight, bias, adds_one) for x in tries]
                if all(close(got, want) for got, want in zip(norm, wanted, strict=True)):
                    return NormFacts(call.path, kind, adds_one, eps)
    raise NotPlain(f"it has norms of type {type(module).__name__}")


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, adds_one: bool) -> Tensor:
    if weight is not None:
        x = x * (weight + 1 if adds_one else weight)
    return x if bias is None else x + bias


def _epsilons(module: Any) -> list[float]:
    own = [value for value in vars(module).values() if isinstance(value, float) and 0 < value <= EPS_MAX]
    return [*own, *EPS_USUAL]
