"""A decoder of BART's architecture or a relative's by our own kernels alone.

A step of tokens that all have logits is written down once for its size (`native_calls.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..encoders.stream import RowNorm, Stream, buffer_for
from ..execution.decoder.buffers import Buffers
from ..execution.decoder.written_steps import WrittenSteps
from ..execution.linears.interface import Packing
from .layers import Attend, Heads
from .packed_layers import CrossAttention, Embedding, Mlp, PackedRows, SelfAttention, all_linears, is_pre_norm


class PackedDecoder:
    """Not thread-safe: its buffers are kept from call to call."""

    position_bias = None

    def __init__(self, model: Any, packing: Packing) -> None:
        """Of a transformers model."""
        decoder, pack = model.model.decoder, packing.layers
        self._dtype = model.dtype
        self._buffers = Buffers()
        self._steps = WrittenSteps(self._buffers)
        self._embed = Embedding(decoder, model.config, self._buffers)
        self._is_pre_norm = is_pre_norm(model.config)
        self._layers = [
            (
                SelfAttention.of(pack, each.self_attn, each.self_attn_layer_norm),
                CrossAttention.of(pack, each.encoder_attn, each.encoder_attn_layer_norm),
                Mlp.of(pack, each),
            )
            for each in decoder.layers
        ]
        self._norm = RowNorm(getattr(decoder, "layer_norm", None))
        bias = getattr(model, "final_logits_bias", None)
        self._head = packing.head(model.lm_head.weight, None if bias is None else bias[0])
        linears = [self._head, *all_linears(*(part for layer in self._layers for part in layer))]
        self._can_be_written_down = all(each.can_be_written_down for each in linears)

    def source_keys_values(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each layer, `[tokens, heads, dim]` each; those of the next layer overwrite them."""
        for _, cross, _ in self._layers:
            out = buffer_for(self._buffers, "source", hidden, cross.source.out_features)
            cross.source.store(hidden, out)
            key, value = out.view(len(out), 2, -1, cross.head_dim).unbind(1)
            yield key, value

    def logits(self, token_ids: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        """`[rows, vocabulary]`, float32, of the tokens `rows`; the next call overwrites them."""
        hidden = self._embed(token_ids, positions)
        kept = self._buffers.get("logits_rows", len(rows), 1, torch.int64)[:, 0].copy_(rows)
        logits = self._buffers.get("logits", len(rows), self._head.out_features, torch.float32)
        compute = partial(self._compute, hidden, kept, logits, attend)
        if len(rows) == len(token_ids) and self._can_be_written_down:
            self._steps.repeat(len(rows), (attend,), compute)
        else:
            compute()
        return logits

    def _compute(self, hidden: Tensor, rows: Tensor, logits: Tensor, attend: Attend) -> None:
        stream = Stream(hidden, self._dtype, self._buffers)
        joined = PackedRows(stream, is_pre_norm=self._is_pre_norm)
        for index, (own, cross, mlp) in enumerate(self._layers):
            joined.join(partial(self._over_output, index, own, attend), own.output, own.norm)
            joined.join(partial(self._over_source, index, cross, attend), cross.output, cross.norm)
            mlp.join(joined, self._buffers)
        last = self._buffers.get("last", len(rows), hidden.shape[1], self._dtype, is_spaced=True)
        self._norm.store(stream.sums, last, rows)
        self._head.store(last, logits)

    def _over_output(self, index: int, own: SelfAttention, attend: Attend, x: Tensor) -> Tensor:
        qkv = buffer_for(self._buffers, "qkv", x, own.qkv.out_features)
        own.qkv.store(x, qkv)
        heads = Heads(*qkv.view(len(qkv), 3, -1, own.head_dim).unbind(1))
        out = buffer_for(self._buffers, "context", x, own.output.in_features)
        return attend.over_output(index, heads, own.head_dim**-0.5, out)

    def _over_source(self, index: int, cross: CrossAttention, attend: Attend, x: Tensor) -> Tensor:
        query = buffer_for(self._buffers, "query", x, cross.query.out_features)
        cross.query.store(x, query)
        out = buffer_for(self._buffers, "context", x, cross.output.in_features)
        return attend.over_source(
            index, query.view(len(query), -1, cross.head_dim), cross.head_dim**-0.5, out
        )
