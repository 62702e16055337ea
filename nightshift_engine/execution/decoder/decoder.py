"""The forward pass of a decoder, written out: no module calls, fused and packed weights, kept buffers.

One way through the layers for every family (`weights.py`) and every device (`operations.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ..attention.interface import AttentionStep
from ..forward_pass import OnExperts, OnLayer
from ..linears.interface import AdaptableLinear, Linear
from ..step_layout import StepInputs
from .adapters.memory import AdapterMemory
from .adapters.rows import AdapterRows
from .adapters.targets import Place, Target
from .operations import MixtureOperations, Operations
from .weights import DecoderLayer, DecoderWeights, Join, Mixture, Mlp, ModuleMlp, Norm, Router, SharedExpert


def compute_mixture(
    operations: MixtureOperations,
    mixture: Mixture,
    x: Tensor,
    join: Join,
    residual: Tensor,
    replace_choice: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Adds what the mixture makes of `x` `[rows, hidden]` to `residual`, as `join` says.

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
    """Output of the shared expert, `[rows, hidden]`, and its gate's numbers, `[rows, 1]`."""
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


@dataclass(frozen=True, slots=True)
class _Step:
    """Memory of one step, kept for the next."""

    positions: Tensor
    logits_rows: Tensor
    residual: Tensor
    logits: Tensor
    adapted: AdapterRows | None


class Decoder:
    """A decoder's weights, packed, and the way through them.

    The residual stream is float32 whatever the dtype of weights and activations.
    """

    def __init__(
        self, weights: DecoderWeights, operations: Operations, targets: Mapping[str, Target] | None = None
    ) -> None:
        self._weights, self._operations = weights, operations
        self.targets = targets or {}
        """The layers of its checkpoint that adapters may change, by the paths of their modules."""
        self.adapters: AdapterMemory | None = None
        """The adapters of steps that have some."""
        self._mixtures = operations if isinstance(operations, MixtureOperations) else None
        self._rotaries = weights.rotaries
        linears = [weights.head.linear, *(linear for layer in weights.layers for linear in layer.linears)]
        self.can_be_written_down = (
            not self.has_modules
            and all(linear.can_be_written_down for linear in linears)
            and not any(layer.attention.call.sinks is not None for layer in weights.layers)
        )
        """Whether steps that only decode are made of calls that were written down."""
        self._on_layer: OnLayer | None = None
        self._on_experts: OnExperts | None = None

    def can_adapt(self, target: Target) -> bool:
        """Whether the products of a layer can be changed as an adapter does."""
        mlp = self._weights.layers[target.layer].mlp
        return target.place != "up" or (isinstance(mlp, Mlp) and isinstance(mlp.up, AdaptableLinear))

    @property
    def has_modules(self) -> bool:
        """Whether some of its layers call modules of transformers."""
        return any(isinstance(layer.mlp, ModuleMlp) for layer in self._weights.layers)

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        """Logits `[rows, vocab]`, float32, of `inputs.logits_rows`; the next call overwrites them."""
        layout, rows, weights = inputs.layout, inputs.logits_rows, self._weights
        for rotary in self._rotaries:
            rotary.grow_to(layout.max_seq_len)
        buffer = self._operations.buffer
        step = _Step(
            positions=self._keep("positions", layout.positions),
            logits_rows=self._keep("logits_rows", rows),
            residual=buffer("residual", layout.num_tokens, weights.embedding.hidden, torch.float32),
            logits=buffer("logits", len(rows), weights.head.linear.out_features, torch.float32),
            adapted=inputs.adapted,
        )
        self._operations.embed(weights.embedding, inputs.input_ids, step.positions, step.residual)
        is_decode = layout.num_tokens == layout.num_decodes == len(rows)
        if (
            self._on_layer is None
            and is_decode
            and self.can_be_written_down
            and self._operations.can_repeat(attention)
        ):
            self._repeat(step, attention)
        else:
            is_whole = self._on_layer is not None or step.adapted is not None
            self._compute(step, attention, keeps_all_rows=is_whole)
        return step.logits

    def _repeat(self, step: _Step, attention: AttentionStep) -> None:
        """Computes a step that may come again, from which rows are not dropped."""
        size: tuple[int, ...] = (len(step.logits_rows),)
        if (adapted := step.adapted) is not None:
            rows, tiles = self._keep("adapter_rows", adapted.rows), self._keep("adapter_tiles", adapted.tiles)
            step = replace(step, adapted=AdapterRows(rows, tiles))
            size += len(rows), len(tiles)
        tables = tuple(rotary.cosine.data_ptr() for rotary in self._rotaries)
        num_puts = 0 if self.adapters is None else self.adapters.num_puts
        self._operations.repeat(
            size,
            (attention, tables, num_puts),
            lambda: self._compute(step, attention, keeps_all_rows=True),
        )

    @contextmanager
    def watch_layers(self, on_layer: OnLayer, on_experts: OnExperts | None = None) -> Iterator[None]:
        """Puts what enters each layer through `on_layer`, in calls made meanwhile, which drop no rows.

        And what a mixture's kernel chooses through `on_experts`.
        """
        self._on_layer, self._on_experts = on_layer, on_experts
        try:
            yield
        finally:
            self._on_layer = self._on_experts = None

    def _compute(self, step: _Step, attention: AttentionStep, *, keeps_all_rows: bool = False) -> None:
        """Embedded tokens in `step.residual` to `step.logits`; rows without logits are dropped early."""
        head, layers, residual = self._weights.head, self._weights.layers, step.residual
        for index in range(len(layers) - 1):
            self._layer(step, attention, index, residual)
        kept = None if keeps_all_rows else step.logits_rows  # the others are not read again
        residual = self._layer(step, attention, len(layers) - 1, residual, kept)
        normed = self._normed("normed", residual, head.norm, step.logits_rows if keeps_all_rows else None)
        head.linear.store(normed, step.logits)
        self._operations.finish_logits(step.logits, head)

    def _layer(
        self, step: _Step, attention: AttentionStep, index: int, residual: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """Computes a layer on `residual`, in place; or returns what becomes of the rows that are kept."""
        layer, operations = self._weights.layers[index], self._operations
        if self._on_layer is not None:
            residual.copy_(self._on_layer(index, residual))
        x = self._normed("normed", residual, layer.input_norm)
        qkv = operations.buffer("qkv", len(x), layer.attention.qkv.out_features)
        layer.attention.qkv.store(x, qkv)
        self._adapt(step, index, "qkv", x, qkv)
        operations.rotate(qkv, layer.attention, step.positions)
        attended = operations.attend(attention, index, layer.attention, qkv)
        if layer.mlp_reads == "input":
            x = self._normed("mlp_input", residual, layer.mlp_norm)
        if kept is not None:
            residual, attended, x = residual[kept], attended[kept], x[kept]
        self._join(step, index, "output", layer.attention.output, attended, layer.attention_join, residual)
        if layer.mlp_reads == "sum":
            x = self._normed("normed", residual, layer.mlp_norm)
        self._mlp(step, layer, index, x, residual)
        return residual

    def _mlp(self, step: _Step, layer: DecoderLayer, index: int, x: Tensor, residual: Tensor) -> None:
        if isinstance(layer.mlp, Mlp):
            inner = self._operations.buffer("inner", len(x), layer.mlp.up.out_features)
            self._up(step, index, layer.mlp.up, x, inner)
            self._join(step, index, "down", layer.mlp.down, inner, layer.mlp_join, residual)
            return
        if isinstance(layer.mlp, Mixture):
            replace = None if self._on_experts is None else partial(self._on_experts, index)
            assert self._mixtures is not None, "experts were packed for other operations"
            compute_mixture(self._mixtures, layer.mlp, x, layer.mlp_join, residual, replace)
            return
        answer = layer.mlp.module(x[None])
        y: Tensor = answer if isinstance(answer, Tensor) else answer[0]
        y = y.float().view(residual.shape)
        self._operations.add(y, layer.mlp_join.norm, layer.mlp_join.factor, residual)

    def _up(self, step: _Step, index: int, up: Linear, x: Tensor, inner: Tensor) -> None:
        """Computes the layer with the activation, before which adapters add what they do."""
        if step.adapted is None or self.adapters is None or self.adapters.at(index, "up") is None:
            up.store(x, inner)
            return
        up = cast(AdaptableLinear, up)
        product = self._operations.buffer("product", len(x), up.product_features, up.product_dtype)
        up.multiply(x, product)
        self._adapt(step, index, "up", x, product)
        up.activate(product, inner)

    def _join(
        self, step: _Step, index: int, place: Place, linear: Linear, x: Tensor, join: Join, residual: Tensor
    ) -> None:
        if join.norm is None:
            linear.add_to(x, residual, join.factor)
            self._adapt(step, index, place, x, residual, join.factor)
            return
        branch = self._operations.buffer("branch", len(x), linear.out_features, torch.float32)
        linear.store(x, branch)
        self._adapt(step, index, place, x, branch)
        self._operations.add(branch, join.norm, join.factor, residual)

    def _adapt(
        self, step: _Step, index: int, place: Place, x: Tensor, out: Tensor, factor: float = 1.0
    ) -> None:
        """Adds what the step's adapters make of `x` to what the packed layer gave."""
        if step.adapted is None or self.adapters is None:
            return
        memory = self.adapters.at(index, place)
        if memory is not None:
            self._operations.adapt(x, memory, step.adapted, out, factor)

    def _normed(self, name: str, x: Tensor, norm: Norm | None, rows: Tensor | None = None) -> Tensor:
        out = self._operations.buffer(name, len(x if rows is None else rows), x.shape[1])
        self._operations.norm(x, norm, out, rows)
        return out

    def _keep(self, name: str, numbers: Tensor) -> Tensor:
        """A copy of a vector, or of rows, of integers at an address that stays."""
        columns = numbers.shape[1] if numbers.dim() > 1 else 1
        kept = self._operations.buffer(name, len(numbers), columns, numbers.dtype).view_as(numbers)
        return kept.copy_(numbers)
