"""The forward pass of a plain decoder, written out: no module calls, fused and packed weights, kept buffers.

For models built like Llama, whatever their class is called: pre-norm attention with a rotary embedding, a
gated MLP, RMS norms. `read_decoder` looks at the parts, not at names; whether it read them rightly is for the
self-test to say. Everything else runs through transformers' own modules. Knows tensors; no sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels.build import load_kernels
from .attention.interface import AttentionStep, LayerCall
from .attention.native_backend import NativeAttention
from .decoder_kernels import DecoderKernels
from .linears import Gate, Linear, Pack, Packing
from .mapped_files import MappedFiles
from .native_calls import FIXED_ORDER, WrittenCalls
from .step_layout import StepInputs

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
WRITTEN_STEPS_MAX = 256
"""Decoding steps of so many sizes are kept written down."""
ROPE_ROWS = 1024
"""The table of cosines grows by whole multiples of this many positions."""

ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = frozenset({"q_norm", "k_norm"})
MLP_PARTS = {"gate_proj", "up_proj", "down_proj"}
LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
DECODER_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}


class NotPlain(Exception):
    """The model is not built like this file; the message says where it differs."""


@dataclass(frozen=True, slots=True)
class _Layer:
    call: LayerCall
    input_norm: Tensor  # [hidden], float32, as are all norms
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _Shape:
    hidden: int
    query_heads: int
    key_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float

    @property
    def qkv(self) -> int:
        return (self.query_heads + 2 * self.key_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class _Step:
    """Memory of one step; all of it but the tables is kept for the next."""

    cosine: Tensor
    sine: Tensor
    positions: Tensor
    logits_rows: Tensor
    residual: Tensor
    logits: Tensor


class Decoder:
    """A plain decoder's weights, packed, and the way through them.

    The residual stream is float32 whatever the dtype of weights and activations.
    """

    def __init__(
        self,
        shape: _Shape,
        layers: list[_Layer],
        embedding: Tensor,
        norm: Tensor,
        lm_head: Linear,
        rotary: _Rotary,
        dtype: torch.dtype,
    ) -> None:
        self._shape, self._layers = shape, layers
        self._embedding, self._norm, self._lm_head = embedding, norm, lm_head
        self._rotary, self._dtype = rotary, dtype
        self._kernels = DecoderKernels()
        self._buffers = _Buffers()
        linears = (each for layer in layers for each in (layer.qkv, layer.output, layer.gate_up, layer.down))
        self._can_be_written_down = all(each.can_be_written_down for each in (*linears, lm_head)) and not any(
            layer.call.sinks is not None for layer in layers
        )
        self._written: dict[int, WrittenCalls] = {}
        self._written_for: tuple[object, ...] = ()

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        """Logits `[rows, vocab]`, float32, of `inputs.logits_rows`; the next call overwrites them."""
        layout, rows = inputs.layout, inputs.logits_rows
        step = _Step(
            *self._rotary.upto(layout.max_seq_len),
            positions=self._keep("positions", layout.positions),
            logits_rows=self._keep("logits_rows", rows),
            residual=self._buffer("residual", layout.num_tokens, self._shape.hidden, torch.float32),
            logits=self._buffer("logits", len(rows), self._shape.vocab, torch.float32),
        )
        self._kernels.gather_rows(self._embedding, inputs.input_ids, step.residual)
        is_decode = layout.num_tokens == layout.num_decodes == len(rows)
        if is_decode and self._can_be_written_down and isinstance(attention, NativeAttention):
            self._written_decode(step, attention).run()
        else:
            self._compute(step, attention)
        return step.logits

    def _written_decode(self, step: _Step, attention: NativeAttention) -> WrittenCalls:
        """All calls of a step that gives each of `len(step.residual)` sequences a token."""
        size = len(step.residual)
        if (written := self._still_written(attention, step).get(size)) is None:
            written = WrittenCalls()
            with written.writing():
                self._compute(step, attention, keeps_all_rows=True)
            # Writing may have grown a buffer, and so moved it from under what was written before.
            self._still_written(attention, step)[size] = written
        return written

    def _still_written(self, attention: NativeAttention, step: _Step) -> dict[int, WrittenCalls]:
        """The steps written down, less those that point to memory no longer in use."""
        now = (attention, step.cosine.data_ptr(), self._buffers.num_moves)
        if now != self._written_for or len(self._written) >= WRITTEN_STEPS_MAX:
            self._written_for = now
            self._written.clear()
        return self._written

    def _compute(self, step: _Step, attention: AttentionStep, *, keeps_all_rows: bool = False) -> None:
        """Embedded tokens in `step.residual` to `step.logits`; rows without logits are dropped early."""
        shape, kernels, residual = self._shape, self._kernels, step.residual
        for index, layer in enumerate(self._layers):
            qkv = self._buffer("qkv", len(residual), shape.qkv, self._dtype)
            layer.qkv.store(self._normed(residual, layer.input_norm), qkv)
            kernels.rotate_heads(qkv, step.positions, step.cosine, step.sine, shape, layer)
            attended = self._attend(attention, index, layer, qkv)
            if index + 1 == len(self._layers) and not keeps_all_rows:  # the others are not read again
                residual, attended = residual[step.logits_rows], attended[step.logits_rows]
            layer.output.add_to(attended, residual)
            gated = self._buffer("gated", len(residual), shape.intermediate, self._dtype)
            layer.gate_up.store(self._normed(residual, layer.mlp_norm), gated)
            layer.down.add_to(gated, residual)
        normed = self._normed(residual, self._norm, step.logits_rows if keeps_all_rows else None)
        self._lm_head.store(normed, step.logits)

    def _attend(self, attention: AttentionStep, index: int, layer: _Layer, qkv: Tensor) -> Tensor:
        shape = self._shape
        heads = qkv.view(len(qkv), -1, shape.head_dim).transpose(0, 1)  # [heads, tokens, head_dim]
        query, key, value = torch.split(heads, [shape.query_heads, shape.key_heads, shape.key_heads])
        if not isinstance(attention, NativeAttention):
            return attention.attend(index, query, key, value, layer.call).flatten(1)
        attended = self._buffer("attended", len(qkv), shape.query_heads * shape.head_dim, self._dtype)
        attention.attend(index, query, key, value, layer.call, out=attended)
        return attended

    def _normed(self, x: Tensor, weight: Tensor, rows: Tensor | None = None) -> Tensor:
        count = len(x if rows is None else rows)
        out = self._buffer("normed", count, self._shape.hidden, self._dtype)
        self._kernels.rms_norm(x, rows, weight, self._shape.norm_eps, out)
        return out

    def _buffer(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        return self._buffers.get(name, rows, columns, dtype)

    def _keep(self, name: str, numbers: Tensor) -> Tensor:
        """A copy of int64 numbers at an address that stays."""
        kept = self._buffers.get(name, len(numbers), 1, torch.int64)[:, 0]
        return kept.copy_(numbers)


class _Buffers:
    """Memory for activations, kept from step to step and grown when a step is larger than all before."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self.num_moves = 0
        """How often one has grown, and so moved."""

    def get(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or len(kept) < rows:
            self._kept[name] = kept = torch.empty(rows, columns, dtype=dtype)
            self.num_moves += 1
        return kept[:rows]


class _Rotary:
    """Cosines and sines of the rotary embedding by position, as the model's own module gives them."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._cosine, self._sine = self._table(ROPE_ROWS)

    @property
    def half(self) -> int:
        return self._cosine.shape[1]

    def upto(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Tables `[at least num_positions, half]`."""
        if num_positions > len(self._cosine):
            rows = max(num_positions, 2 * len(self._cosine))
            self._cosine, self._sine = self._table(-(-rows // ROPE_ROWS) * ROPE_ROWS)
        return self._cosine, self._sine

    def _table(self, num_positions: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(num_positions)[None]
        tables = self._module(torch.zeros(1), positions)  # its first argument only says which dtype
        halves = []
        for table in tables:
            first, second = table[0].float().chunk(2, dim=-1)
            if not torch.equal(first, second):
                raise NotPlain("its rotary embedding interleaves")
            halves.append(first.contiguous())
        return halves[0], halves[1]


def read_decoder(model: Any, calls: Sequence[LayerCall], packing: Packing, dtype: torch.dtype) -> Decoder:
    """Take a transformers model apart into a `Decoder`. Its linear weights are freed as they are packed.

    `calls` is what each layer asks of attention. Raises `NotPlain`, before anything is freed, if the model is
    built otherwise.
    """
    if load_kernels("decoder", FIXED_ORDER) is None:
        raise NotPlain("there are no native kernels on this machine")
    if dtype not in DTYPES:
        raise NotPlain(f"it computes in {dtype}")
    body, head = _parts(model, {"model", "lm_head"}), model.lm_head
    parts = _parts(body["model"], DECODER_PARTS)
    config = model.config.get_text_config()
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type")  # else per kind of layer
    if rope_type not in STATIC_ROPES:
        raise NotPlain(f"its rotary embedding is of type {rope_type!r}")
    modules = list(parts["layers"])
    for module in modules:
        _check_parts(module)
    rotary = _Rotary(parts["rotary_emb"])
    shape = _shape(modules, parts["embed_tokens"], config, rotary.half)
    gate = _gate(config)
    for module in modules:
        _check_shapes(module, shape)
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


def _parts(module: Any, wanted: set[str], optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    found = dict(module.named_children())
    if not wanted <= set(found) <= wanted | optional:
        differing = sorted(set(found) ^ wanted)
        raise NotPlain(f"{type(module).__name__} has other parts: {', '.join(differing)}")
    return found


def _shape(modules: list[Any], embedding: Any, config: Any, half: int) -> _Shape:
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
    return _Shape(
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


def _gate(config: Any) -> Gate:
    name = getattr(config, "hidden_act", None)
    if name not in GATES:
        raise NotPlain(f"its MLP is gated by {name!r}")
    return GATES[name]


def _check_parts(module: Any) -> None:
    _parts(module, LAYER_PARTS)
    _parts(module.self_attn, ATTENTION_PARTS, HEAD_NORMS)
    _parts(module.mlp, MLP_PARTS, frozenset({"act_fn"}))


def _check_shapes(module: Any, shape: _Shape) -> None:
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


def _pack_layer(module: Any, call: LayerCall, pack: Pack, gate: Gate, files: MappedFiles) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    return _Layer(
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
