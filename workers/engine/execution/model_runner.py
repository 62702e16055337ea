"""Runs the model over a step's chunks: token counts in, logits out.

Lays the tokens of all chunks end to end in one row, tells the attention where each one's KV lies, and asks
the model for logits of those rows only that will be sampled. Decides nothing: which chunks, and what becomes
of the logits, is settled elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from ..batching.batcher import Chunk
from .attention import AttentionBackend, paged_step
from .kv_memory import KvMemory
from .step_layout import StepInputs, lay_out


class ModelRunner:
    """A model, its KV memory, and the way from chunks to logits."""

    def __init__(self, model: Any, kv: KvMemory, attention: AttentionBackend) -> None:
        self._model = model
        self.kv = kv
        self._attention = attention
        self.device: torch.device = model.device
        self._has_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def forward(self, chunks: Seq[Chunk]) -> Tensor:
        """Compute all chunks; logits `[chunks that are last, vocabulary]` in the order given, float32."""
        inputs = lay_out(chunks, self.kv.block_size, self.device)
        with paged_step(self._attention.step(inputs.layout)):
            return self._call(inputs)

    def forget_values(self, blocks: list[int]) -> None:
        """Wipe blocks whose content is not finite, before others are given them."""
        self.kv.clear(blocks)

    def _call(self, inputs: StepInputs) -> Tensor:
        arguments = {"input_ids": inputs.input_ids[None], "position_ids": inputs.layout.positions[None]}
        logits: Tensor
        if self._has_logits_to_keep:
            logits = self._model(**arguments, use_cache=False, logits_to_keep=inputs.logits_rows).logits[0]
        else:
            logits = self._model(**arguments, use_cache=False).logits[0, inputs.logits_rows]
        return logits.float()
