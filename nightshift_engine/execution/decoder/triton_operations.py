"""The decoder's operations on CUDA, by our Triton kernels. On a CPU under Triton's interpreter, for tests."""

from collections.abc import Callable, Hashable
from typing import Literal

import torch
from torch import Tensor

from ...kernels.triton.lora import add_adapters
from ...kernels.triton.rows import LAYER, NO_NORM, RMS, HeadRows, RowNorm, norm_rows, rotate_heads
from ..attention.interface import AttentionStep
from .adapters.memory import PlaceMemory
from .adapters.rows import AdapterRows
from .weights import Attention, Embedding, Head, HeadNorm, Norm

_KINDS: dict[Literal["rms", "layer"], int] = {"rms": RMS, "layer": LAYER}


class TritonOperations:
    """Kernels on memory of torch's allocator, so that steps can be recorded as CUDA graphs."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self._device = dtype, device

    def buffer(self, name: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
        """New each time: what a graph was recorded with must not be given to another step."""
        return torch.empty(rows, columns, dtype=dtype or self.dtype, device=self._device)

    def embed(self, embedding: Embedding, token_ids: Tensor, positions: Tensor, out: Tensor) -> None:
        out.copy_(embedding.table[token_ids])
        if embedding.factor != 1:
            out.mul_(embedding.factor)
        if embedding.positions is not None:
            out.add_(embedding.positions[positions])

    def norm(self, x: Tensor, norm: Norm | None, out: Tensor, rows: Tensor | None = None) -> None:
        norm_rows(x, _row_norm(norm), out, rows=rows)

    def add(self, x: Tensor, norm: Norm | None, factor: float, out: Tensor) -> None:
        norm_rows(x, _row_norm(norm), out, adds=True, factor=factor)

    def rotate(self, qkv: Tensor, attention: Attention, positions: Tensor) -> None:
        if not (attention.rotation or attention.query_norm or attention.key_norm):
            return
        width = attention.query_heads * attention.head_dim
        queries, keys = qkv[:, :width], qkv[:, width : width + attention.key_heads * attention.head_dim]
        rotation = attention.rotation
        rotate_heads(
            qkv,
            positions,
            HeadRows(attention.query_heads, _norm_of_heads(attention.query_norm, queries)),
            HeadRows(attention.key_heads, _norm_of_heads(attention.key_norm, keys)),
            head_dim=attention.head_dim,
            cosine=rotation.rotary.cosine if rotation else None,
            sine=rotation.rotary.sine if rotation else None,
            is_interleaved=rotation.is_interleaved if rotation else False,
        )

    def attend(self, step: AttentionStep, layer: int, attention: Attention, qkv: Tensor) -> Tensor:
        heads = qkv.view(len(qkv), -1, attention.head_dim).transpose(0, 1)  # [heads, tokens, head_dim]
        counts = [attention.query_heads, attention.key_heads, attention.key_heads]
        query, key, value = torch.split(heads, counts)
        return step.attend(layer, query, key, value, attention.call).flatten(1)

    def adapt(
        self, x: Tensor, memory: PlaceMemory, rows: AdapterRows, out: Tensor, factor: float = 1.0
    ) -> None:
        add_adapters(
            x, memory.a, memory.b, memory.part_ends, memory.ranks, rows.rows, rows.tiles, out, factor
        )

    def finish_logits(self, logits: Tensor, head: Head) -> None:
        if head.factor != 1:
            logits.mul_(head.factor)
        if head.cap:
            logits.div_(head.cap).tanh_().mul_(head.cap)

    def can_repeat(self, attention: AttentionStep) -> bool:
        """CUDA graphs repeat steps here, outside the decoder."""
        return False

    def repeat(self, size: Hashable, valid_for: Hashable, compute: Callable[[], None]) -> None:
        compute()


def _row_norm(norm: Norm | None) -> RowNorm:
    return NO_NORM if norm is None else RowNorm(_KINDS[norm.kind], norm.weight, norm.bias, norm.eps)


def _norm_of_heads(norm: HeadNorm | None, heads: Tensor) -> RowNorm:
    """The norm of each head; one over all `heads` `[rows, heads * head_dim]` of a row is done here."""
    if norm is None:
        return NO_NORM
    if not norm.spans_heads:
        return _row_norm(norm.norm)
    norm_rows(heads, _row_norm(norm.norm), heads)
    return NO_NORM
