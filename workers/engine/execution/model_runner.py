"""Runs the model over a step's chunks: token counts in, logits out.

Lays the tokens of all chunks end to end in one row, tells the attention where each one's KV lies, and asks
the model for logits of those rows only that will be sampled. Decides nothing: which chunks, and what becomes
of the logits, is settled elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Seq
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batching.batcher import Chunk
from .attention import DecodeGroup, PagedStep, PrefillChunk, paged_step
from .kv_memory import KvMemory

PADDING_RATIO_MAX = 0.25
"""Share of a row's gathered blocks that may be padding, beyond the one block granted to every row."""


class ModelRunner:
    """A model, its KV memory, and the way from chunks to logits."""

    def __init__(self, model: Any, kv: KvMemory) -> None:
        self._model = model
        self.kv = kv
        self.device: torch.device = model.device
        self._has_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def forward(self, chunks: Seq[Chunk]) -> Tensor:
        """Compute all chunks; logits `[chunks that are last, vocabulary]` in the order given, float32."""
        # Decoding sequences first, by length: neighbours then make a group that pads little.
        arranged = sorted(chunks, key=_decodes_first_by_length)
        starts = dict(zip(map(id, arranged), _starts([chunk.num_tokens for chunk in arranged]), strict=True))
        rows = [starts[id(chunk)] + chunk.num_tokens - 1 for chunk in chunks if chunk.is_last]
        step = self._paged_step(arranged)
        with paged_step(step):
            return self._call(_token_ids(arranged), _positions(arranged), rows)

    def forget_values(self, blocks: list[int]) -> None:
        """Wipe blocks whose content is not finite, before others are given them."""
        self.kv.clear(blocks)

    def _call(self, token_ids: Tensor, positions: Tensor, rows: list[int]) -> Tensor:
        keep = self._to_device(torch.tensor(rows, dtype=torch.long))
        arguments = {
            "input_ids": self._to_device(token_ids)[None],
            "position_ids": self._to_device(positions)[None],
        }
        logits: Tensor
        if self._has_logits_to_keep:
            logits = self._model(**arguments, use_cache=False, logits_to_keep=keep).logits[0]
        else:
            logits = self._model(**arguments, use_cache=False).logits[0, keep]
        return logits.float()

    def _paged_step(self, arranged: list[Chunk]) -> PagedStep:
        block_size = self.kv.block_size
        blocks = np.fromiter(
            chain.from_iterable(_blocks_written(chunk, block_size) for chunk in arranged), np.int64
        )
        decodes = [chunk for chunk in arranged if chunk.num_tokens == 1]
        block_counts = [chunk.sequence.num_computed_tokens // block_size + 1 for chunk in decodes]
        return PagedStep(
            kv=self.kv,
            blocks=self._to_device(torch.from_numpy(blocks)),
            offsets=self._to_device(_positions(arranged) % block_size),
            decode_groups=[self._decode_group(decodes[run], run) for run in similar_lengths(block_counts)],
            prefill_chunks=self._prefill_chunks(arranged[len(decodes) :], first_row=len(decodes)),
        )

    def _decode_group(self, members: list[Chunk], rows: slice) -> DecodeGroup:
        lengths = [chunk.sequence.num_computed_tokens + 1 for chunk in members]
        width = -(-lengths[-1] // self.kv.block_size)  # members are sorted by length
        tables = np.zeros((len(members), width), dtype=np.int64)
        for row, chunk in enumerate(members):
            used = chunk.sequence.blocks[:width]
            tables[row, : len(used)] = used
        return DecodeGroup(
            start=rows.start,
            stop=rows.stop,
            tables=self._to_device(torch.from_numpy(tables)),
            lengths=self._to_device(torch.tensor(lengths)),
        )

    def _prefill_chunks(self, members: list[Chunk], first_row: int) -> list[PrefillChunk]:
        starts = _starts([chunk.num_tokens for chunk in members], first_row)
        return [
            PrefillChunk(
                start=start,
                stop=start + chunk.num_tokens,
                first_position=chunk.sequence.num_computed_tokens,
                table=self._to_device(torch.tensor(chunk.sequence.blocks)),
            )
            for chunk, start in zip(members, starts, strict=True)
        ]

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def _decodes_first_by_length(chunk: Chunk) -> tuple[bool, int]:
    return chunk.num_tokens > 1, chunk.sequence.num_computed_tokens


def _starts(lengths: list[int], first: int = 0) -> list[int]:
    starts = []
    for length in lengths:
        starts.append(first)
        first += length
    return starts


def _token_ids(arranged: list[Chunk]) -> Tensor:
    ids: list[int] = []
    for chunk in arranged:
        start = chunk.sequence.num_computed_tokens
        ids += chunk.sequence.token_ids[start : start + chunk.num_tokens]
    return torch.tensor(ids, dtype=torch.long)


def _positions(arranged: list[Chunk]) -> Tensor:
    positions: list[int] = []
    for chunk in arranged:
        start = chunk.sequence.num_computed_tokens
        positions += range(start, start + chunk.num_tokens)
    return torch.tensor(positions, dtype=torch.long)


def _blocks_written(chunk: Chunk, block_size: int) -> list[int]:
    start, blocks = chunk.sequence.num_computed_tokens, chunk.sequence.blocks
    return [blocks[position // block_size] for position in range(start, start + chunk.num_tokens)]


def similar_lengths(block_counts: Seq[int]) -> list[slice]:
    """Cut ascending block counts into runs whose shortest is nearly as long as their longest."""
    runs: list[slice] = []
    stop = len(block_counts)
    for index in range(len(block_counts) - 1, -1, -1):
        if block_counts[index] + 1 < block_counts[stop - 1] * (1 - PADDING_RATIO_MAX):
            runs.append(slice(index + 1, stop))
            stop = index + 1
    if block_counts:
        runs.append(slice(0, stop))
    return runs
