"""Runs the model over a step's chunks: token counts in, logits out.

Lays the tokens of all chunks end to end in one row, tells the attention where each one's KV lies, and asks
the model for logits of those rows only that will be sampled. Decides nothing: which chunks, and what becomes
of the logits, is settled elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ..batching.batcher import Chunk
from .attention import AttentionBackend
from .forward_pass import ForwardPass
from .kv_memory import KvMemory
from .step_layout import lay_out


class ModelRunner:
    """A model, its KV memory, and the way from chunks to logits."""

    def __init__(
        self, forward_pass: ForwardPass, kv: KvMemory, attention: AttentionBackend, device: torch.device
    ) -> None:
        self._forward_pass = forward_pass
        self.kv = kv
        self._attention = attention
        self.device = device

    @torch.inference_mode()
    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        """Compute all chunks; logits `[chunks that are last, vocabulary]` in the order given, float32.

        `promised` are the tokens of the step before, on the device, for sequences that do not know theirs.
        """
        inputs = lay_out(chunks, self.kv.block_size, self.device)
        if promised is not None:
            inputs.input_ids[inputs.promised_rows] = promised[inputs.promised_sources]
        return self._forward_pass(inputs, self._attention.step(inputs.layout))

    def forget_values(self, blocks: list[int]) -> None:
        """Wipe blocks whose content is not finite, before others are given them."""
        self.kv.clear(blocks)
