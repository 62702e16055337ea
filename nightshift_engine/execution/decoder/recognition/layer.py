"""Describes a layer: its norms, its MLP or mixture, and how its branches return to the residual stream."""

import logging

import torch
from torch import Tensor

from ...experts.packed import is_experts
from ...linears.interface import Activation, activation_of
from ..weights import MlpInput
from .attention import Tables, attention_linears, is_linear, output_linear, recognise_attention
from .facts import JoinFacts, LayerFacts, MixtureFacts, MlpFacts, NotPlain, SharedExpertFacts
from .router import recognise_router
from .trace import LayerTrace, ModuleCall
from .values import TOLERANCE, NamedFactors, close, recognise_norm, same

log = logging.getLogger(__name__)


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
    """The function of single numbers that the module is; None if it is none that we have."""
    if not call.is_leaf or next(call.module.parameters(), None) is not None or call.x.shape != call.y.shape:
        return None
    return activation_of(call.module)


def recognise_mixture(
    block: ModuleCall, calls: list[ModuleCall], factors: NamedFactors
) -> MixtureFacts | None:
    """The mixture that the module called in `block` is, made of `calls`; None if it is of another kind."""
    experts = [call for call in calls if is_experts(call.module)]
    if len(experts) != 1 or not same(experts[0].x, block.x):
        return None
    parts = [call for call in calls if not _is_below(call.path, experts[0].path)]
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
    """The expert that computes the same input for all tokens alike, if there is one."""
    gates = [call for call in calls if is_linear(call) and call.y.shape[-1] == 1 and same(call.x, block.x)]
    for parent in calls:
        within = [call for call in calls if _is_below(call.path, parent.path) and call not in gates]
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


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + ".")


ROUNDING = 1e-6
"""Share of the residual stream that adding to it in float32 may lose."""


class _Branch:
    """Attention or MLP: what it read from, and what it gave, norms around it included."""

    def __init__(self, norms: list[ModuleCall], x: Tensor, y: Tensor) -> None:
        before = next((call for call in norms if same(call.y, x)), None)
        after = next((call for call in norms if same(call.x, y)), None)
        self.input = x
        self.norm_call = before
        self.norm = None if before is None else recognise_norm(before)
        self.reads = x if before is None else before.x
        self.output_norm = None if after is None else recognise_norm(after)
        self.output = y if after is None else after.y


def recognise_layer(trace: LayerTrace, rotaries: list[Tables], factors: NamedFactors) -> LayerFacts:
    """Raises `NotPlain` where the layer is built otherwise."""
    attention_facts = recognise_attention(trace, rotaries, factors)
    of_attention = {*attention_facts.linears, attention_facts.output}
    norms = _norm_calls(trace)
    attention = _Branch(norms, attention_linears(trace)[0].x, output_linear(trace).y)
    if not same(attention.reads, trace.x):
        raise NotPlain("its attention does not read the layer's input")
    mlp_facts, mlp_x, mlp_y = _find_mlp(trace, of_attention, factors)
    mlp = _Branch(norms, mlp_x, mlp_y)
    reads, attention_factor, mlp_factor = _residual(trace, attention, mlp)
    return LayerFacts(
        input_norm=attention.norm,
        attention=attention_facts,
        attention_join=JoinFacts(attention.output_norm, factors.exactly(attention_factor)),
        mlp_reads=reads,
        mlp_norm=None if reads == "attention's input" else mlp.norm,
        mlp=mlp_facts,
        mlp_join=JoinFacts(mlp.output_norm, factors.exactly(mlp_factor)),
    )


def _norm_calls(trace: LayerTrace) -> list[ModuleCall]:
    """Leaves that turn hidden states into others: norms, if anything. Dropout gives back what it got."""
    hidden = trace.x.numel()
    return [
        call
        for call in trace.calls
        if call.is_leaf
        and not isinstance(call.module, torch.nn.Linear)
        and call.x.numel() == call.y.numel() == hidden
        and not same(call.x, call.y)
        and (list(call.module.parameters()) or "norm" in type(call.module).__name__.lower())
    ]


def _find_mlp(
    trace: LayerTrace, of_attention: set[str], factors: NamedFactors
) -> tuple[MlpFacts | MixtureFacts | str, Tensor, Tensor]:
    """The MLP as facts, or else the path of the module that is it; what it reads and what it gives."""
    attention = next(iter(of_attention)).rpartition(".")[0]
    others = [
        call
        for call in trace.calls
        if call.path and call.path not in of_attention and not _is_within(call.path, attention)
    ]
    blocks = [call for call in others if "." not in call.path and not call.is_leaf]
    if len(blocks) > 1:
        raise NotPlain(f"its layers have {len(blocks)} parts beside attention")
    parts = [call for call in others if not blocks or _is_within(call.path, blocks[0].path)]
    mlp = recognise_mlp(parts)
    if mlp is not None:
        by_path = {call.path: call for call in parts}
        x, y = by_path[mlp.ups[0]].x, by_path[mlp.down].y
        if not blocks or same(blocks[0].y, y):
            return mlp, x, y
    if not blocks:
        raise NotPlain("its MLP is neither known nor a module of its own")
    [block] = blocks
    return recognise_mixture(block, parts, factors) or block.path, block.x, block.y


def _is_within(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + ".")


def _residual(trace: LayerTrace, attention: _Branch, mlp: _Branch) -> tuple[MlpInput, float, float]:
    """The input of the MLP, and the factors with which both branches are added. Raises `NotPlain`."""
    shares_norm = mlp.norm_call is not None and mlp.norm_call is attention.norm_call
    is_parallel = shares_norm or same(mlp.reads, trace.x)
    stream = trace.x if is_parallel else mlp.reads
    columns = [attention.output, mlp.output]
    if is_parallel:
        attention_factor, mlp_factor = _factors(trace.y - trace.x, columns, trace.x)
    else:
        [attention_factor] = _factors(stream - trace.x, columns[:1], trace.x)
        [mlp_factor] = _factors(trace.y - stream, columns[1:], stream)
    if not is_parallel:
        return "sum", attention_factor, mlp_factor
    reads: MlpInput = "attention's input" if shares_norm or same(mlp.input, attention.input) else "input"
    return reads, attention_factor, mlp_factor


def _factors(wanted: Tensor, columns: list[Tensor], stream: Tensor) -> list[float]:
    """The factors that make the sum of `columns` what is wanted, a difference to `stream`."""
    flat = torch.stack([column.reshape(-1).double() for column in columns], dim=1)
    target = wanted.reshape(-1).double()
    factors = torch.linalg.lstsq(flat, target[:, None]).solution[:, 0]
    if (flat @ factors - target).norm() > TOLERANCE * target.norm() + ROUNDING * stream.double().norm():
        raise NotPlain("its attention and its MLP are not simply added to the residual stream")
    return [float(factor) for factor in factors]
