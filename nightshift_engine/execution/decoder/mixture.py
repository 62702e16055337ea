"""A mixture of experts in a written-out layer: from its input to the residual stream."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .operations import MixtureOperations
from .weights import Join, Mixture, Router, SharedExpert


def compute_mixture(
    operations: MixtureOperations,
    mixture: Mixture,
    x: Tensor,
    join: Join,
    residual: Tensor,
    replace_choice: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Add what the mixture makes of `x` `[rows, hidden]` to `residual`, as `join` says.

    `replace_choice` gets the experts chosen, `[rows, choices]`, and returns those that are to compute.
    """
    rows, hidden = len(x), residual.shape[1]
    chosen, weights = _choose(operations, mixture.router, x, replace_choice)
    by_expert, starts, places = operations.sort_by_expert(x, chosen, mixture.router.rule.experts)
    inner = operations.buffer("experts_inner", len(by_expert), mixture.up.out_features)
    mixture.up.store(by_expert, starts, inner)
    y = operations.buffer("experts", len(by_expert), hidden, torch.float32)
    mixture.down.store(inner, starts, y)
    shared, gates = _shared(operations, mixture.shared, x)
    if join.norm is None:
        operations.combine(y, places, weights, shared, gates, join.factor, residual)
        return
    branch = operations.buffer("branch", rows, hidden, torch.float32)
    operations.combine(y, places, weights, shared, gates, None, branch)
    operations.add(branch, join.norm, join.factor, residual)


def _choose(
    operations: MixtureOperations,
    router: Router,
    x: Tensor,
    replace_choice: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    logits = operations.buffer("router_logits", len(x), router.rule.experts, router.logits_dtype)
    router.linear.store(x, logits)
    chosen, weights = operations.choose_experts(router, logits, None)
    if replace_choice is None:
        return chosen, weights
    return operations.choose_experts(router, logits, replace_choice(chosen))


def _shared(
    operations: MixtureOperations, shared: SharedExpert | None, x: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """What the shared expert gives, `[rows, hidden]`, and its gate's numbers, `[rows, 1]`."""
    if shared is None:
        return None, None
    inner = operations.buffer("inner", len(x), shared.mlp.up.out_features)
    shared.mlp.up.store(x, inner)
    y = operations.buffer("shared", len(x), shared.mlp.down.out_features, torch.float32)
    shared.mlp.down.store(inner, y)
    if shared.gate is None:
        return y, None
    gates = operations.buffer("shared_gate", len(x), 1, torch.float32)
    shared.gate.store(x, gates)
    return y, gates
