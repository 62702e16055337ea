"""A layer as a description: which norm stands where, and how its branches return to the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor

from ..weights import MlpInput
from .attention import Tables, attention_linears, output_linear, recognise_attention
from .facts import JoinFacts, LayerFacts, MixtureFacts, MlpFacts, NotPlain
from .mixture import recognise_mixture
from .mlp import recognise_mlp
from .norms import recognise_norm
from .trace import LayerTrace, ModuleCall
from .values import TOLERANCE, NamedFactors, same

ROUNDING = 1e-6
"""What adding to the residual stream in float32 may lose of it."""


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
    """Where the MLP reads, and the factors with which both branches are added. Raises `NotPlain`."""
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
