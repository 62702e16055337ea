"""Takes a transformers decoder apart as it was recognised: its weights packed, its own freed as they are."""

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...checkpoint.narrow.weight import NarrowWeight, join_rows
from ...kernels.native.build import load_kernels
from ..attention.interface import LayerCall
from ..device.held_weights import make_whole, narrow_of
from ..device.mapped_files import MappedFiles
from ..device.native_calls import FIXED_ORDER
from ..experts.packed import pack_experts
from ..linears.interface import Linear, Pack, Packing
from ..packed_modules import bias_of, free, pack_modules, shape_of, weight_of
from ..parallel.part import Part
from .adapters.targets import find_targets
from .decoder import Decoder
from .native_operations import DTYPES, NativeOperations
from .operations import Operations
from .recognition.facts import (
    AttentionFacts,
    DecoderFacts,
    HeadNormFacts,
    JoinFacts,
    LayerFacts,
    MixtureFacts,
    MlpFacts,
    NormFacts,
    NotPlain,
)
from .recognition.model import recognise_decoder
from .recognition.router import rounds_logits
from .weights import (
    Attention,
    DecoderLayer,
    DecoderWeights,
    Embedding,
    Head,
    HeadNorm,
    Join,
    Mixture,
    Mlp,
    ModuleMlp,
    Norm,
    Rotary,
    Rotation,
    Router,
    SharedExpert,
)

log = logging.getLogger(__name__)


def read_decoder(
    model: Any,
    calls: Sequence[LayerCall],
    packing: Packing,
    dtype: torch.dtype,
    *,
    allows_modules: bool = True,
    context_length: int | None = None,
    operations: Operations | None = None,
    part: Part | None = None,
) -> Decoder:
    """Takes a transformers model on paged attention apart into a `Decoder`.

    Its linear weights are freed as they are packed. `calls` is what each layer asks of attention. With
    `allows_modules`, an MLP of an unknown kind is called as the module it is. `context_length` is how many
    tokens will be served. `operations` are those of the model's device if none are given. `part` is what this
    rank has of it. Raises `NotPlain`, before anything is freed, if the model is built otherwise.
    """
    part = part or Part()
    if dtype not in DTYPES:
        raise NotPlain(f"it computes in {dtype}")
    operations = operations or _operations(dtype, model.device)
    facts = recognise_decoder(model, context_length)
    own = [layer_facts.mlp for layer_facts in facts.layer_facts if isinstance(layer_facts.mlp, str)]
    if own and not allows_modules:
        raise NotPlain(f"its {own[0]} is a module of its own kind")
    if part.size > 1:
        _check_can_be_split(facts, calls)
    targets = find_targets(model, facts)
    return Decoder(_Packer(facts, packing, dtype, part).pack(calls), operations, targets)


def _check_can_be_split(facts: DecoderFacts, calls: Sequence[LayerCall]) -> None:
    """Raises `NotPlain` where a layer's parts would not compute alone."""
    for layer, of_layer, call in zip(facts.layers, facts.layer_facts, calls, strict=True):
        attention, mlp = of_layer.attention, of_layer.mlp
        if not isinstance(mlp, MlpFacts):
            raise NotPlain("it is a mixture of experts")
        if call.sinks is not None:
            raise NotPlain("its attention has a sink for each head")
        for norm in (attention.query_norm, attention.key_norm):
            if norm is None:
                continue
            weight = getattr(layer.get_submodule(norm.norm.path), "weight", None)
            if norm.spans_heads or (weight is not None and weight.numel() > attention.head_dim):
                raise NotPlain("a norm of its attention spans all heads")


def _operations(dtype: torch.dtype, device: torch.device) -> Operations:
    if device.type == "cpu":
        if load_kernels("decoder", FIXED_ORDER) is None:
            raise NotPlain("there are no native kernels on this machine")
        return NativeOperations(dtype)
    if importlib.util.find_spec("triton") is None:
        raise NotPlain("triton is not installed")
    from .triton_operations import TritonOperations  # imports triton, which is not everywhere

    return TritonOperations(dtype, device)


class _Packer:
    """Makes packed weights of modules, and frees theirs."""

    def __init__(self, facts: DecoderFacts, packing: Packing, dtype: torch.dtype, part: Part) -> None:
        self._facts, self._packing, self._dtype, self._part = facts, packing, dtype, part
        self._files = MappedFiles()
        self._num_dequantized = 0
        self._rotaries = [Rotary(call.tables) for call in facts.rotaries]

    def pack(self, calls: Sequence[LayerCall]) -> DecoderWeights:
        facts = self._facts
        layers = [
            self._layer(module, layer_facts, call)
            for module, layer_facts, call in zip(facts.layers, facts.layer_facts, calls, strict=True)
        ]
        embedding = self._embedding()
        linear = self._head()
        norm = None if facts.norm is None else _norm(facts.norm_module, facts.norm)
        head = Head(norm, linear, facts.logit_factor, facts.logit_cap)
        if self._num_dequantized:
            log.warning("%d layers have narrow weights and are computed dequantised", self._num_dequantized)
        return DecoderWeights(embedding, layers, head)

    def _head(self) -> Linear:
        head, part = self._facts.head, self._part
        with part.whole(head):
            bias = bias_of(head)
            linear = self._packing.head(
                part.vocabulary(weight_of(head)), None if bias is None else part.vocabulary(bias)
            )
            if head.weight is not self._facts.embedding.weight:
                free(head, self._files)
        return part.gathered(linear)

    def _embedding(self) -> Embedding:
        """Copies, here and of the norms: one tensor left would keep the whole mapped file in memory.

        What lies on another device than the file is no part of it.
        """
        facts = self._facts
        table = facts.embedding.weight.detach()
        kept_dtype = torch.bfloat16 if table.dtype == torch.bfloat16 else torch.float32
        kept = table.to(kept_dtype, copy=table.device.type == "cpu")
        positions = None
        if facts.positions is not None:
            learned = facts.positions.module.weight.detach()[facts.positions.offset :]
            positions = learned.to(torch.float32, copy=True).contiguous()
        return Embedding(kept, facts.embedding_factor, positions)

    def _layer(self, module: Any, facts: LayerFacts, call: LayerCall) -> DecoderLayer:
        with self._part.whole(module):
            return self._packed_layer(module, facts, call)

    def _packed_layer(self, module: Any, facts: LayerFacts, call: LayerCall) -> DecoderLayer:
        return DecoderLayer(
            input_norm=_norm_at(module, facts.input_norm),
            attention=self._attention(module, facts.attention, call),
            attention_join=_join(module, facts.attention_join),
            mlp_reads=facts.mlp_reads,
            mlp_norm=_norm_at(module, facts.mlp_norm),
            mlp=self._any_mlp(module, facts.mlp),
            mlp_join=_join(module, facts.mlp_join),
        )

    def _attention(self, module: Any, facts: AttentionFacts, call: LayerCall) -> Attention:
        rotation = None
        if facts.rotation is not None:
            rotation = Rotation(self._rotaries[facts.rotation.rotary], facts.rotation.is_interleaved)
        return Attention(
            call=replace(call, scale=call.scale * facts.score_factor),
            query_heads=self._part.count(facts.query_heads),
            key_heads=self._part.count(facts.key_heads),
            head_dim=facts.head_dim,
            qkv=self._qkv(module, facts),
            query_norm=_head_norm(module, facts.query_norm),
            key_norm=_head_norm(module, facts.key_norm),
            rotation=rotation,
            output=self._summed(module, facts.output),
        )

    def _qkv(self, module: Any, facts: AttentionFacts) -> Linear:
        sections = [n * facts.head_dim for n in (facts.query_heads, facts.key_heads, facts.key_heads)]
        return self._fused(module, facts.linears, self._packing.layers, facts.order, sections)

    def _any_mlp(self, module: Any, facts: MlpFacts | MixtureFacts | str) -> Mlp | Mixture | ModuleMlp:
        if isinstance(facts, MlpFacts):
            return self._mlp(module, facts)
        if isinstance(facts, MixtureFacts):
            mixture = self._mixture(module, facts)
            if mixture is not None:
                return mixture
            facts = facts.path
        left = ModuleMlp(module.get_submodule(facts))
        if self._facts.embedding.weight.device.type == "cpu":
            pack_modules(left.module, self._packing, self._dtype)
        else:
            self._num_dequantized += make_whole(left.module)
        return left

    def _mixture(self, module: Any, facts: MixtureFacts) -> Mixture | None:
        """The packed experts. None, and nothing freed, where our kernels cannot compute its experts or its
        router.
        """
        block, experts = module.get_submodule(facts.path), module.get_submodule(facts.experts)
        tensors = dict(block.named_parameters()) | dict(block.named_buffers())
        weight = tensors[facts.router.weight].detach()
        if (
            self._packing.experts is None
            or experts.down_proj.dtype != self._dtype
            or weight.dtype != self._dtype
        ):
            return None
        packed = pack_experts(experts, self._packing.experts)
        if packed is None:
            return None
        router = self._router(block, facts, weight, tensors)
        free(experts, self._files)
        shared = None
        if facts.shared is not None:
            gate = facts.shared.gate
            gate_linear = None if gate is None else self._fused(module, (gate,), self._packing.head)
            shared = SharedExpert(self._mlp(module, facts.shared.mlp), gate_linear)
        return Mixture(router, packed.up, packed.down, shared)

    def _router(self, block: Any, facts: MixtureFacts, weight: Tensor, tensors: dict[str, Tensor]) -> Router:
        """Packed as what makes logits is: experts are chosen by small differences."""
        names = facts.router.bias, facts.router.correction
        bias, correction = (None if name is None else _vector(tensors[name]) for name in names)
        is_rounded = weight.dtype == torch.bfloat16 and rounds_logits(block, facts)
        linear = self._packing.head(weight, bias)
        free(block.get_submodule(facts.router.weight.rpartition(".")[0]), self._files)
        return Router(
            linear=linear,
            logits_dtype=torch.bfloat16 if is_rounded else torch.float32,
            correction=correction,
            rule=facts.router.rule,
        )

    def _mlp(self, module: Any, facts: MlpFacts) -> Mlp:
        _, width = shape_of(module.get_submodule(facts.down))
        kind = "gate" if facts.is_gated else "activation"
        sections = [width, width] if facts.is_gated else [width]
        pack, order = self._packing.layers, facts.order(width)
        up = self._fused(module, facts.ups, pack, order, sections, **{kind: facts.activation})
        return Mlp(up, self._summed(module, facts.down))

    def _summed(self, module: Any, path: str) -> Linear:
        """A layer whose outputs join the residual stream."""
        linear, part = module.get_submodule(path), self._part
        weight = self._joined([linear], self._packing.layers)
        if isinstance(weight, Tensor):
            weight = part.columns(weight)
        packed = self._pack(self._packing.layers, weight, part.added(bias_of(linear)))
        free(linear, self._files)
        return part.summed(packed)

    def _fused(
        self,
        module: Any,
        paths: Sequence[str],
        pack: Pack,
        order: Tensor | None = None,
        sections: Sequence[int] = (),
        **options: Any,
    ) -> Linear:
        """Several linears over the same input as one, its rows in `order`; their own weights are freed.

        Of each of `sections`, in that order, a rank has its run of rows.
        """
        linears = [module.get_submodule(path) for path in paths]
        weight = self._joined(linears, pack)
        biases = [
            torch.zeros(shape_of(linear)[0], device=linear.weight.device)
            if linear.bias is None
            else linear.bias.detach().float()
            for linear in linears
        ]
        bias = torch.cat(biases) if any(linear.bias is not None for linear in linears) else None
        for linear in linears:
            free(linear, self._files)
        rows = self._part.rows(sections)
        if rows is not None:
            order = rows if order is None else order[rows]
        if order is not None:
            weight = weight.rows(order) if isinstance(weight, NarrowWeight) else weight[order]
            bias = None if bias is None else bias[order]
        return self._pack(pack, weight, bias, **options)

    def _joined(self, linears: Sequence[Any], pack: Pack) -> Tensor | NarrowWeight:
        """The rows of several layers, narrow if they all are in the same way and may be packed so."""
        narrow = [weight for linear in linears if (weight := narrow_of(linear)) is not None]
        is_narrow = len(narrow) == len(linears) and pack is self._packing.layers and self._packing.narrow
        joined = join_rows(narrow) if is_narrow else None
        if joined is None and narrow:
            self._num_dequantized += 1
        return torch.cat([weight_of(linear) for linear in linears]) if joined is None else joined

    def _pack(self, pack: Pack, weight: Tensor | NarrowWeight, bias: Tensor | None, **options: Any) -> Linear:
        if isinstance(weight, NarrowWeight):
            assert self._packing.narrow is not None, "else it would be dequantised"
            if (packed := self._packing.narrow(weight, bias, **options)) is not None:
                return packed
            self._num_dequantized += 1
            weight = weight.dequantized(self._dtype)
        return pack(weight, bias, **options)


def _vector(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32, copy=True).flatten()


def _norm_at(layer: Any, facts: NormFacts | None) -> Norm | None:
    return None if facts is None else _norm(layer.get_submodule(facts.path), facts)


def _norm(module: Any, facts: NormFacts) -> Norm:
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is not None:
        weight = _vector(weight)
        weight = weight + 1 if facts.adds_one else weight
    if bias is not None:
        bias = _vector(bias)
    return Norm(facts.kind, weight, bias, facts.eps)


def _head_norm(layer: Any, facts: HeadNormFacts | None) -> HeadNorm | None:
    return (
        None
        if facts is None
        else HeadNorm(_norm(layer.get_submodule(facts.norm.path), facts.norm), facts.spans_heads)
    )


def _join(layer: Any, facts: JoinFacts) -> Join:
    return Join(_norm_at(layer, facts.norm), facts.factor)
