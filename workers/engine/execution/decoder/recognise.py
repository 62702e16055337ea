"""Which transformers models are built like the written-out decoder: by their parts, not by their names.

Whether the parts were read rightly is for the self-test to say.
"""

from __future__ import annotations

from typing import Any

import torch

from ..linears.interface import Gate
from .weights import DecoderShape

GATES: dict[str, Gate] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
STATIC_ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings that depend on the position alone, so that they can be tabulated."""
DTYPES = (torch.float32, torch.bfloat16)
"""What `kernels/decoder.cpp` reads and writes."""
HEAD_DIM_MAX = 512

ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = frozenset({"q_norm", "k_norm"})
MLP_PARTS = {"gate_proj", "up_proj", "down_proj"}
LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
DECODER_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}


class NotPlain(Exception):
    """The model is not built like this file; the message says where it differs."""


def parts_of(module: Any, wanted: set[str], optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    found = dict(module.named_children())
    if not wanted <= set(found) <= wanted | optional:
        differing = sorted(set(found) ^ wanted)
        raise NotPlain(f"{type(module).__name__} has other parts: {', '.join(differing)}")
    return found


def shape_of(modules: list[Any], embedding: Any, config: Any, half: int) -> DecoderShape:
    first = modules[0].self_attn
    head_dim = getattr(first, "head_dim", None)
    if not isinstance(head_dim, int) or head_dim > HEAD_DIM_MAX or 2 * half > head_dim:
        raise NotPlain(f"its heads have {head_dim} dimensions, of which {2 * half} rotate")
    vocab, hidden = embedding.weight.shape
    eps = [
        norm_eps(norm)
        for module in modules
        for norm in (module.input_layernorm, module.post_attention_layernorm)
    ]
    if len(set(eps)) != 1:
        raise NotPlain("its norms differ")
    return DecoderShape(
        hidden=hidden,
        query_heads=first.q_proj.out_features // head_dim,
        key_heads=first.k_proj.out_features // head_dim,
        head_dim=head_dim,
        intermediate=modules[0].mlp.gate_proj.out_features,
        vocab=vocab,
        norm_eps=eps[0],
    )


def norm_eps(norm: Any) -> float:
    """Epsilon of an RMS norm; NotPlain if it is another kind of norm."""
    eps = getattr(norm, "variance_epsilon", None)
    if eps is None or set(dict(norm.named_parameters())) != {"weight"}:
        raise NotPlain(f"it has norms of type {type(norm).__name__}")
    return float(eps)


def gate_of(config: Any) -> Gate:
    name = getattr(config, "hidden_act", None)
    if name not in GATES:
        raise NotPlain(f"its MLP is gated by {name!r}")
    return GATES[name]


def check_parts(module: Any) -> None:
    parts_of(module, LAYER_PARTS)
    parts_of(module.self_attn, ATTENTION_PARTS, HEAD_NORMS)
    parts_of(module.mlp, MLP_PARTS, frozenset({"act_fn"}))


def check_shapes(module: Any, shape: DecoderShape) -> None:
    """Raise NotPlain unless the layer has the shapes of the first one."""
    attention, mlp = dict(module.self_attn.named_children()), dict(module.mlp.named_children())
    heads = shape.head_dim
    wanted = {
        "q_proj": (shape.query_heads * heads, shape.hidden),
        "k_proj": (shape.key_heads * heads, shape.hidden),
        "v_proj": (shape.key_heads * heads, shape.hidden),
        "o_proj": (shape.hidden, shape.query_heads * heads),
        "gate_proj": (shape.intermediate, shape.hidden),
        "up_proj": (shape.intermediate, shape.hidden),
        "down_proj": (shape.hidden, shape.intermediate),
    }
    for name, size in wanted.items():
        linear = attention.get(name) or mlp[name]
        if type(linear) is not torch.nn.Linear or tuple(linear.weight.shape) != size:
            raise NotPlain(f"its {name} is no linear layer of {size[1]} to {size[0]}")
    for name in HEAD_NORMS & set(attention):
        norm_eps(attention[name])
        if tuple(attention[name].weight.shape) != (heads,):
            raise NotPlain(f"its {name} is not over a head")
