"""What a layer's MLP computes: its linear layers, and the function between them."""

from __future__ import annotations

from ...linears.activations import activation_of
from ...linears.interface import Activation
from .attention import is_linear
from .facts import MlpFacts
from .trace import ModuleCall
from .values import close, same


def recognise_mlp(calls: list[ModuleCall]) -> MlpFacts | None:
    """The MLP made of `calls`, all below one module or one layer; None if it is of another kind."""
    linears = [call for call in calls if is_linear(call)]
    if len(linears) not in (2, 3):
        return None
    *ups, down = linears
    activations = [(call, name) for call in calls if (name := _activation(call)) is not None]
    if len(activations) != 1 or any(not same(up.x, ups[0].x) for up in ups):
        return None
    [(call, name)] = activations
    return _plain(ups, down, call, name) or _gated(ups, down, call, name) or _fused(ups, down, call, name)


def _plain(ups: list[ModuleCall], down: ModuleCall, act: ModuleCall, name: Activation) -> MlpFacts | None:
    if len(ups) == 1 and same(act.x, ups[0].y) and same(down.x, act.y):
        return MlpFacts((ups[0].path,), False, False, name, down.path)
    return None


def _gated(ups: list[ModuleCall], down: ModuleCall, act: ModuleCall, name: Activation) -> MlpFacts | None:
    if len(ups) != 2:
        return None
    for gate, up in (ups, ups[::-1]):
        if same(act.x, gate.y) and close(act.y.reshape(-1) * up.y.reshape(-1), down.x):
            return MlpFacts((gate.path, up.path), True, False, name, down.path)
    return None


def _fused(ups: list[ModuleCall], down: ModuleCall, act: ModuleCall, name: Activation) -> MlpFacts | None:
    if len(ups) != 1 or ups[0].y.shape[-1] % 2:
        return None
    halves = ups[0].y.chunk(2, dim=-1)
    for gate_is_second in (False, True):
        gate, up = halves[gate_is_second], halves[not gate_is_second]
        if same(act.x, gate) and close(act.y.reshape(-1) * up.reshape(-1), down.x):
            return MlpFacts((ups[0].path,), True, gate_is_second, name, down.path)
    return None


def _activation(call: ModuleCall) -> Activation | None:
    """Which function of single numbers the module is; None if it is none that we have."""
    if not call.is_leaf or next(call.module.parameters(), None) is not None or call.x.shape != call.y.shape:
        return None
    return activation_of(call.module)
