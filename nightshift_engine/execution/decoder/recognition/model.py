"""A model as a description: its layers and what is around them, by what its modules computed."""

from typing import Any

import torch
from torch import Tensor

from ..weights import STATIC_ROPES
from .facts import DecoderFacts, LayerFacts, NotPlain, PositionFacts, RotaryCall, half_table
from .layer import recognise_layer
from .trace import NUM_TOKENS, ModelTrace, ModuleCall, trace_model
from .values import NamedFactors, close, factor_of, recognise_norm, same

ROUNDED_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Tolerance for numbers that the model computed in its own dtype."""
POSITION_OFFSET_MAX = 8
FIRST_POSITION = 3


def recognise_decoder(model: Any, context_length: int | None = None) -> DecoderFacts:
    """Raises `NotPlain` where the model cannot be written out, up to `context_length` tokens."""
    try:
        with torch.inference_mode():
            facts = _recognise(model, FIRST_POSITION)
            last = 0 if context_length is None else context_length - NUM_TOKENS
            if last > FIRST_POSITION:
                _check_same(facts, _recognise(model, last), last)
            return facts
    except NotPlain:
        raise
    except Exception as error:  # the model's own code, called otherwise than it expects
        raise NotPlain(f"its parts do not run alone: {type(error).__name__}: {error}") from error


def _check_same(early: DecoderFacts, late: DecoderFacts, position: int) -> None:
    """Raises `NotPlain` where positions change more than rotary tables say: as ministral3 does."""
    names = ("layer_facts", "embedding_factor", "positions", "norm", "logit_factor", "logit_cap")
    if any(getattr(early, name) != getattr(late, name) for name in names):
        raise NotPlain(f"from position {position} on it computes otherwise than from {FIRST_POSITION} on")


def _recognise(model: Any, first_position: int) -> DecoderFacts:
    config = model.config.get_text_config()
    _check_ropes(config)
    trace = trace_model(model, config.num_hidden_layers, first_position)
    _check_chain(trace)
    tolerance = ROUNDED_TOLERANCE[model.dtype]
    rotaries = [_rotary(call, trace, model.device) for call in trace.outside if _is_rotary(call, trace)]
    layer_facts = _recognise_layers(trace, rotaries, config)
    embedding, embedding_factor, positions = _recognise_embedding(model, trace, config, tolerance)
    norm_call, head_call = _recognise_end(model, trace)
    logit_factor, logit_cap = _recognise_logits(head_call.y, trace.logits, config, tolerance)
    return DecoderFacts(
        layers=trace.layers,
        layer_facts=layer_facts,
        embedding=embedding,
        embedding_factor=embedding_factor,
        positions=positions,
        rotaries=rotaries,
        norm_module=None if norm_call is None else norm_call.module,
        norm=None if norm_call is None else recognise_norm(norm_call),
        head=head_call.module,
        logit_factor=logit_factor,
        logit_cap=logit_cap,
    )


def _check_ropes(config: Any) -> None:
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in [ropes] if "rope_type" in ropes else ropes.values():
        if isinstance(rope, dict) and rope.get("rope_type", "default") not in STATIC_ROPES:
            raise NotPlain(f"its rotary embedding is of type {rope['rope_type']!r}")


def _check_chain(trace: ModelTrace) -> None:
    outputs = [call.y for call in trace.layer_calls]
    inputs = [call.x for call in trace.layer_calls]
    if any(not same(x, y) for y, x in zip(outputs[:-1], inputs[1:], strict=True)):
        raise NotPlain("something comes between its layers")


def _is_rotary(call: ModuleCall, trace: ModelTrace) -> bool:
    """Two tensors with a row per token, of which one belongs to positions: cosines and sines."""
    pair = call.output
    return (
        isinstance(pair, tuple)
        and len(pair) == 2
        and all(isinstance(tensor, Tensor) and tensor.numel() % len(trace.positions) == 0 for tensor in pair)
        and pair[0].shape == pair[1].shape
        and pair[0].dim() == 3
        and call.is_leaf
    )


def _rotary(call: ModuleCall, trace: ModelTrace, device: torch.device) -> RotaryCall:
    cosine, sine = call.output
    traced = half_table(cosine), half_table(sine)
    return RotaryCall(call.module, call.args, call.kwargs, trace.positions, traced, device)


def _recognise_layers(trace: ModelTrace, rotaries: list[RotaryCall], config: Any) -> list[LayerFacts]:
    """Layers that are built alike are looked at once."""
    tables = [rotary.traced for rotary in rotaries]
    known: dict[Any, LayerFacts] = {}
    rotations = []
    for index, layer in enumerate(trace.layers):
        signature = _signature(layer)
        if signature not in known:
            of_layer = trace.of_layer(index)
            factors = NamedFactors(config, of_layer.attended.query.shape[2])
            known[signature] = recognise_layer(of_layer, tables, factors)
        rotations.append(known[signature])
    return rotations


def _signature(layer: Any) -> Any:
    """A value that two layers share that compute the same with other weights."""
    return tuple(
        (
            path,
            type(module),
            tuple(
                (name, value)
                for name, value in sorted(vars(module).items())
                if isinstance(value, (bool, int, float, str)) and name != "layer_idx"
            ),
            tuple((name, tuple(value.shape)) for name, value in module.named_parameters(recurse=False)),
        )
        for path, module in layer.named_modules()
    )


def _recognise_embedding(
    model: Any, trace: ModelTrace, config: Any, tolerance: float
) -> tuple[Any, float, PositionFacts | None]:
    module, x = model.get_input_embeddings(), trace.layer_calls[0].x.float()
    embedded = module.weight.detach()[trace.token_ids].float().cpu()
    if embedded.numel() != x.numel():
        raise NotPlain("its first layer does not read what it embeds")
    positions, learned = None, torch.zeros_like(x)
    for call in trace.outside:
        if isinstance(call.module, torch.nn.Embedding) and call.module is not module:
            positions, learned = _recognise_positions(call, trace), call.y.float()
    factor = factor_of(x.reshape(-1) - learned.reshape(-1), embedded, tolerance)
    if factor is None:
        raise NotPlain("its first layer reads more than embedded tokens and positions")
    factors = NamedFactors(config)
    return module, factors.exactly(factor, tolerance), positions


def _recognise_positions(call: ModuleCall, trace: ModelTrace) -> PositionFacts:
    table = call.module.weight.detach().cpu()
    for offset in range(POSITION_OFFSET_MAX):
        rows = trace.positions + offset
        if int(rows[-1]) < len(table) and same(table[rows], call.y):
            return PositionFacts(call.module, offset)
    raise NotPlain("it adds something else than learned positions to its tokens")


def _recognise_end(model: Any, trace: ModelTrace) -> tuple[ModuleCall | None, ModuleCall]:
    """The norm after the last layer, and the layer that makes logits."""
    last, head = trace.layer_calls[-1].y, model.get_output_embeddings()
    head_call = next((call for call in trace.outside if call.module is head), None)
    if head_call is None or type(head) is not torch.nn.Linear:
        raise NotPlain("its logits do not come from a linear layer")
    if same(head_call.x, last):
        return None, head_call
    for call in trace.outside:
        if call.is_leaf and same(call.x, last) and same(call.y, head_call.x):
            return call, head_call
    raise NotPlain("more than a norm comes between its last layer and its logits")


def _recognise_logits(y: Tensor, logits: Tensor, config: Any, tolerance: float) -> tuple[float, float]:
    """The factor of the logits, and their cap, 0 if there is none."""
    y, logits = y.float().reshape(-1), logits.float().reshape(-1)
    if same(y, logits):
        return 1.0, 0.0
    factors = NamedFactors(config)
    factor = factor_of(logits, y, tolerance)
    if factor is not None and getattr(config, "final_logit_softcapping", None) is None:
        return factors.exactly(factor, tolerance), 0.0
    cap = getattr(config, "final_logit_softcapping", None)
    if cap and close(torch.tanh(y / cap) * cap, logits, tolerance):
        return 1.0, float(cap)
    raise NotPlain("something else than a factor or a cap follows its logits")
