"""An encoder of BART's architecture or a relative's by our own kernels, without padding."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from ..encoders.stream import RowNorm, Stream, buffer_for
from ..execution.attention.input_attention import InputAttention
from ..execution.decoder.buffers import Buffers
from ..execution.linears.interface import Pack
from .layers import source_positions
from .packed_layers import Embedding, Mlp, PackedRows, SelfAttention, is_pre_norm


class PackedEncoder:
    """Not thread-safe: its buffers are kept from call to call."""

    def __init__(self, model: Any, pack: Pack) -> None:
        """Of a transformers model."""
        encoder = model.model.encoder
        self._config, self._dtype = model.config, model.dtype
        self._buffers = Buffers()
        self._embed = Embedding(encoder, model.config, self._buffers)
        self._layers = [
            (SelfAttention.of(pack, each.self_attn, each.self_attn_layer_norm), Mlp.of(pack, each))
            for each in encoder.layers
        ]
        norm = getattr(encoder, "layer_norm", None)
        self._norm = None if norm is None else RowNorm(norm)
        self._attention = InputAttention()

    def __call__(self, sources: Seq[Seq[int]]) -> Tensor:
        """`[tokens, hidden]`, one source's after another's; the next call overwrites them."""
        ids = torch.tensor([*chain.from_iterable(sources)])
        positions = torch.cat([source_positions(self._config, source) for source in sources])
        starts = torch.tensor([0, *accumulate(map(len, sources))])
        stream = Stream(self._embed(ids, positions), self._dtype, self._buffers)
        rows = PackedRows(stream, is_pre_norm=is_pre_norm(self._config))
        for attention, mlp in self._layers:
            rows.join(partial(self._attend, attention, starts), attention.output, attention.norm)
            mlp.join(rows, self._buffers)
        return stream.rounded() if self._norm is None else stream.normed(self._norm)

    def _attend(self, own: SelfAttention, starts: Tensor, x: Tensor) -> Tensor:
        qkv = buffer_for(self._buffers, "qkv", x, own.qkv.out_features)
        own.qkv.store(x, qkv)
        query, key, value = qkv.chunk(3, dim=1)
        out = buffer_for(self._buffers, "context", x, query.shape[1])
        self._attention(query, key, value, out, query_starts=starts, key_starts=starts, head_dim=own.head_dim)
        return out
