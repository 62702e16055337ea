"""What a layer's mixture of experts computes: the router's rule, its experts, one for all tokens."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ...experts.packed import is_experts
from .attention import is_linear
from .facts import MixtureFacts, NotPlain, SharedExpertFacts
from .mlp import recognise_mlp
from .router import recognise_router
from .trace import ModuleCall
from .values import NamedFactors, close, same

log = logging.getLogger(__name__)


def recognise_mixture(
    block: ModuleCall, calls: list[ModuleCall], factors: NamedFactors
) -> MixtureFacts | None:
    """The mixture that the module called in `block` is, made of `calls`; None if it is of another kind."""
    experts = [call for call in calls if is_experts(call.module)]
    if len(experts) != 1 or not same(experts[0].x, block.x):
        return None
    parts = [call for call in calls if not _is_within(call.path, experts[0].path)]
    shared = _recognise_shared(block, parts)
    wanted = experts[0].y.flatten() + _shared_output(shared, parts, experts[0].y)
    if not close(wanted, block.y):
        return None
    try:
        router = recognise_router(block, experts[0].module, _linear_paths(shared), factors)
    except NotPlain as error:
        log.debug("%s stays a module: %s", block.path, error)
        return None
    return MixtureFacts(block.path, router, experts[0].path, shared)


def _recognise_shared(block: ModuleCall, calls: list[ModuleCall]) -> SharedExpertFacts | None:
    """What is computed of the same input for all tokens alike, if anything is."""
    gates = [call for call in calls if is_linear(call) and call.y.shape[-1] == 1 and same(call.x, block.x)]
    for parent in calls:
        within = [call for call in calls if _is_within(call.path, parent.path) and call not in gates]
        mlp = recognise_mlp(within) if parent.path != block.path and same(parent.x, block.x) else None
        if mlp is not None:
            return SharedExpertFacts(mlp, gates[0].path if gates else None)
    return None


def _linear_paths(shared: SharedExpertFacts | None) -> set[str]:
    if shared is None:
        return set()
    return {*shared.mlp.ups, shared.mlp.down} | ({shared.gate} if shared.gate else set())


def _shared_output(shared: SharedExpertFacts | None, calls: list[ModuleCall], like: Tensor) -> Tensor:
    by_path = {call.path: call.y for call in calls}
    if shared is None:
        return torch.zeros_like(like).flatten()
    y = by_path[shared.mlp.down].reshape(-1, like.shape[-1])
    gate = torch.sigmoid(by_path[shared.gate].reshape(-1, 1)) if shared.gate else 1.0
    return (y * gate).flatten()


def _is_within(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + ".")
