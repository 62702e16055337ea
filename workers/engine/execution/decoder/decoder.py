"""The forward pass of a plain decoder, written out: no module calls, fused and packed weights, kept buffers.

Knows tensors; no sequences, and nothing of the modules that the weights came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.interface import AttentionStep
from ..attention.native_backend import NativeAttention
from ..linears.interface import Linear
from ..native_calls import WrittenCalls
from ..step_layout import StepInputs
from .buffers import Buffers
from .kernels import DecoderKernels
from .rotary import Rotary
from .weights import DecoderLayer, DecoderShape

WRITTEN_STEPS_MAX = 256
"""Decoding steps of so many sizes are kept written down."""


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
        shape: DecoderShape,
        layers: list[DecoderLayer],
        embedding: Tensor,
        norm: Tensor,
        lm_head: Linear,
        rotary: Rotary,
        dtype: torch.dtype,
    ) -> None:
        self._shape, self._layers = shape, layers
        self._embedding, self._norm, self._lm_head = embedding, norm, lm_head
        self._rotary, self._dtype = rotary, dtype
        self._kernels = DecoderKernels()
        self._buffers = Buffers()
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

    def _attend(self, attention: AttentionStep, index: int, layer: DecoderLayer, qkv: Tensor) -> Tensor:
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
