"""The decoder's operations on a CPU, by our own kernels."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..attention.interface import AttentionStep, GroupedAttention
from ..attention.native_backend import NativeAttention
from ..experts.kernels import ExpertKernels
from .adapters.memory import PlaceMemory
from .adapters.native import add_adapters
from .adapters.rows import AdapterRows
from .buffers import Buffers, WrittenSteps
from .kernels import DecoderKernels
from .weights import Attention, Embedding, Head, Norm, Router

DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of activations that `kernels/native/decoder.cpp` reads and writes."""


class NativeOperations:
    """Kernel calls on kept buffers; steps that come again are written down once."""

    def __init__(self, dtype: torch.dtype) -> None:
        assert dtype in DTYPES, f"the kernels compute no {dtype}"
        self.dtype = dtype
        self._kernels, self._experts = DecoderKernels(), ExpertKernels()
        self._buffers = Buffers()
        self._steps = WrittenSteps(self._buffers)

    def buffer(self, name: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
        return self._buffers.get(name, rows, columns, dtype or self.dtype, is_spaced=dtype is None)

    def embed(self, embedding: Embedding, token_ids: Tensor, positions: Tensor, out: Tensor) -> None:
        self._kernels.gather_rows(embedding.table, token_ids, out, factor=embedding.factor)
        if embedding.positions is not None:
            self._kernels.gather_rows(embedding.positions, positions, out, adds=True)

    def norm(self, x: Tensor, norm: Norm | None, out: Tensor, rows: Tensor | None = None) -> None:
        self._kernels.norm(x, rows, norm, out)

    def add(self, x: Tensor, norm: Norm | None, factor: float, out: Tensor) -> None:
        self._kernels.norm(x, None, norm, out, adds=True, factor=factor)

    def rotate(self, qkv: Tensor, attention: Attention, positions: Tensor) -> None:
        if attention.rotation or attention.query_norm or attention.key_norm:
            self._kernels.rotate_heads(qkv, positions, attention)

    def attend(self, step: AttentionStep, layer: int, attention: Attention, qkv: Tensor) -> Tensor:
        heads = qkv.view(len(qkv), -1, attention.head_dim).transpose(0, 1)  # [heads, tokens, head_dim]
        counts = [attention.query_heads, attention.key_heads, attention.key_heads]
        query, key, value = torch.split(heads, counts)
        if isinstance(step, GroupedAttention):
            step = step.of_layer(layer)
        if not isinstance(step, NativeAttention):
            return step.attend(layer, query, key, value, attention.call).flatten(1)
        attended = self.buffer("attended", len(qkv), attention.query_heads * attention.head_dim)
        step.attend(layer, query, key, value, attention.call, out=attended)
        return attended

    def adapt(
        self, x: Tensor, memory: PlaceMemory, rows: AdapterRows, out: Tensor, factor: float = 1.0
    ) -> None:
        shrunk = self.buffer("shrunk", len(rows.rows), memory.a.shape[1], torch.float32)
        add_adapters(x, memory, rows, shrunk, out, factor)

    def choose_experts(self, router: Router, logits: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        rows, choices = len(logits), router.rule.choices
        kept = self.buffer("chosen", rows, choices, torch.int64)
        weights = self.buffer("weights", rows, choices, torch.float32)
        if chosen is not None:
            kept.copy_(chosen)
        is_given = chosen is not None
        self._experts.choose(router.rule, logits, router.correction, kept, weights, keeps_choice=is_given)
        return kept, weights

    def sort_by_expert(self, x: Tensor, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, choices = chosen.shape
        # Apart for each number of choices: a thread that is late by a call must not read starts of more rows.
        starts = self.buffer(f"starts of {choices}", 1, experts + 1, torch.int64)[0]
        places = self.buffer("places", rows, choices, torch.int64)
        out = self.buffer("sorted", rows * choices, x.shape[1])
        self._experts.sort(x, chosen, out, starts, places)
        return out, starts, places

    def combine(
        self,
        y: Tensor,
        places: Tensor,
        weights: Tensor,
        shared: Tensor | None,
        gates: Tensor | None,
        factor: float | None,
        out: Tensor,
    ) -> None:
        self._experts.combine(y, places, weights, out, shared=shared, gates=gates, factor=factor)

    def finish_logits(self, logits: Tensor, head: Head) -> None:
        if head.factor != 1 or head.cap:
            self._kernels.finish_logits(logits, head.factor, head.cap)

    def can_repeat(self, attention: AttentionStep) -> bool:
        backends = attention.backends if isinstance(attention, GroupedAttention) else [attention]
        return all(isinstance(backend, NativeAttention) for backend in backends)

    def repeat(self, size: Hashable, valid_for: Hashable, compute: Callable[[], None]) -> None:
        self._steps.repeat(size, valid_for, compute)
