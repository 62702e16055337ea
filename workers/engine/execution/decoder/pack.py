"""Takes a plain transformers decoder apart: its weights packed, its own freed as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...kernels.build import load_kernels
from ..attention.interface import LayerCall
from ..linears.interface import Gate, Linear, Pack, Packing
from ..mapped_files import MappedFiles
from ..native_calls import FIXED_ORDER
from .decoder import Decoder
from .recognise import (
    DECODER_PARTS,
    DTYPES,
    STATIC_ROPES,
    NotPlain,
    check_parts,
    check_shapes,
    gate_of,
    parts_of,
    shape_of,
)
from .rotary import Rotary
from .weights import DecoderLayer


def read_decoder(model: Any, calls: Sequence[LayerCall], packing: Packing, dtype: torch.dtype) -> Decoder:
    """Take a transformers model apart into a `Decoder`. Its linear weights are freed as they are packed.

    `calls` is what each layer asks of attention. Raises `NotPlain`, before anything is freed, if the model is
    built otherwise.
    """
    if load_kernels("decoder", FIXED_ORDER) is None:
        raise NotPlain("there are no native kernels on this machine")
    if dtype not in DTYPES:
        raise NotPlain(f"it computes in {dtype}")
    body, head = parts_of(model, {"model", "lm_head"}), model.lm_head
    parts = parts_of(body["model"], DECODER_PARTS)
    config = model.config.get_text_config()
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type")  # else per kind of layer
    if rope_type not in STATIC_ROPES:
        raise NotPlain(f"its rotary embedding is of type {rope_type!r}")
    modules = list(parts["layers"])
    for module in modules:
        check_parts(module)
    rotary = Rotary(parts["rotary_emb"])
    shape = shape_of(modules, parts["embed_tokens"], config, rotary.half)
    gate = gate_of(config)
    for module in modules:
        check_shapes(module, shape)
    if head.weight.shape != parts["embed_tokens"].weight.shape:
        raise NotPlain("its logits are not of the tokens it embeds")
    files = MappedFiles()
    pairs = zip(modules, calls, strict=True)
    layers = [_pack_layer(module, call, packing.layers, gate, files) for module, call in pairs]
    # Copies, here and of the norms: one tensor left would keep the whole mapped file in memory.
    table = parts["embed_tokens"].weight.detach()
    embedding = table.to(torch.bfloat16 if table.dtype == torch.bfloat16 else torch.float32, copy=True)
    lm_head = packing.head(head.weight.detach(), _detached(head.bias))
    if head.weight is not parts["embed_tokens"].weight:
        _free(head, files)
    return Decoder(shape, layers, embedding, _weight(parts["norm"]), lm_head, rotary, dtype)


def _pack_layer(module: Any, call: LayerCall, pack: Pack, gate: Gate, files: MappedFiles) -> DecoderLayer:
    attention, mlp = module.self_attn, module.mlp
    return DecoderLayer(
        call=call,
        input_norm=_weight(module.input_layernorm),
        qkv=_pack_fused([attention.q_proj, attention.k_proj, attention.v_proj], pack, files),
        query_norm=_weight(getattr(attention, "q_norm", None)),
        key_norm=_weight(getattr(attention, "k_norm", None)),
        output=_pack_fused([attention.o_proj], pack, files),
        mlp_norm=_weight(module.post_attention_layernorm),
        gate_up=_pack_fused([mlp.gate_proj, mlp.up_proj], pack, files, gate=gate),
        down=_pack_fused([mlp.down_proj], pack, files),
    )


def _pack_fused(linears: list[Any], pack: Pack, files: MappedFiles, **options: Any) -> Linear:
    """Several linears over the same input as one; their own weights are freed."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [
        torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()
        for linear in linears
    ]
    has_bias = any(linear.bias is not None for linear in linears)
    for linear in linears:
        _free(linear, files)
    return pack(weight, torch.cat(biases) if has_bias else None, **options)


def _free(linear: Any, files: MappedFiles) -> None:
    files.release(linear.weight)
    linear.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def _detached(parameter: Any) -> Tensor | None:
    return None if parameter is None else parameter.detach()


def _weight(norm: Any) -> Any:
    return None if norm is None else norm.weight.detach().to(torch.float32, copy=True)
