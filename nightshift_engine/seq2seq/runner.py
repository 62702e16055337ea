"""Runs an encoder-decoder over a step's chunks: whole sources, then outputs."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.sequence import Sequence
from ..core.steps import Chunk
from ..execution.attention.interface import AttentionBackend
from ..execution.attention.native_backend import NativeAttention
from ..execution.kv_memory import KvMemory
from .attention import NativeCrossAttention, PagedCrossAttention, store
from .decoding import DecodingRules
from .layers import Attend, Seq2seqDecoder


@dataclass(frozen=True, slots=True)
class EncoderDecoder:
    """A loaded model, as the runner calls it."""

    encoder: Callable[[Seq[Seq[int]]], Tensor]
    """Sources to states `[tokens, hidden]`, one's after another's. The next call may overwrite them."""
    decoder: Seq2seqDecoder
    rules: DecodingRules
    vocab_size: int
    eos_token_ids: frozenset[int]
    dtype: torch.dtype


class Seq2seqRunner:
    """A model, its KV memory, and the way from chunks to logits."""

    def __init__(
        self, model: EncoderDecoder, kv: KvMemory, attention: AttentionBackend, device: torch.device
    ) -> None:
        self._model = model
        self._kv = kv
        self._device = device
        self.eager_steps: Counter[str] = Counter()
        self._native = NativeCrossAttention(kv) if isinstance(attention, NativeAttention) else None

    @torch.inference_mode()
    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        """Computes all chunks; logits `[rows, vocabulary]` in the order given, float32.

        Each chunk that is its sequence's last has one row. Steps do not overlap: `promised` is None.
        """
        assert promised is None, "the tokens of the step before are known"
        ends = [(chunk, chunk.sequence.num_computed_tokens + chunk.num_tokens) for chunk in chunks]
        begun = [
            chunk.sequence
            for chunk, end in ends
            if chunk.sequence.num_computed_tokens < chunk.sequence.source_slots <= end
        ]
        if begun:
            self._encode(begun)
        if self._device.type == "cuda":
            self.eager_steps["encoder_decoder"] += 1
        decoded = [(chunk, end) for chunk, end in ends if end > chunk.sequence.source_slots]
        if not decoded:
            return torch.empty(0, self._model.vocab_size, device=self._device)
        return self._decode(decoded)

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zeros blocks whose content is not finite, before other sequences get them."""
        self._kv.clear(blocks)

    def check(self) -> None:
        """Finds nothing: what could fail has raised."""

    def _encode(self, sequences: list[Sequence]) -> None:
        """Puts the cross-attention's keys and values of sources into their blocks."""
        sources = [list(sequence.request.source_token_ids) for sequence in sequences]
        hidden = self._model.encoder(sources)
        size = self._kv.block_size
        places = np.concatenate([np.arange(len(ids)) for ids in sources])
        rows = np.concatenate(
            [
                sequence.block_row[np.arange(len(ids)) // size]
                for sequence, ids in zip(sequences, sources, strict=True)
            ]
        )
        blocks, offsets = self._on_device(rows), self._on_device(places % size)
        if self._native is not None:
            self._native.begin_sources(blocks, offsets)
        for index, (key, value) in enumerate(self._model.decoder.source_keys_values(hidden)):
            if self._native is not None:
                self._native.store(index, key, value)
            else:
                store(self._kv, index, blocks, offsets, key, value)

    def _decode(self, chunks: list[tuple[Chunk, int]]) -> Tensor:
        """Logits of the last token of each chunk that is its sequence's last."""
        size = self._kv.block_size
        sequences = [chunk.sequence for chunk, _ in chunks]
        slots = [sequence.source_slots for sequence in sequences]
        starts = [
            max(sequence.num_computed_tokens, skip) for sequence, skip in zip(sequences, slots, strict=True)
        ]
        counts = [end - start for (_, end), start in zip(chunks, starts, strict=True)]
        token_ids = chain.from_iterable(
            sequence.token_ids[start:end]
            for sequence, start, (_, end) in zip(sequences, starts, chunks, strict=True)
        )
        positions = np.concatenate(
            [
                np.arange(start - skip, end - skip)
                for start, skip, (_, end) in zip(starts, slots, chunks, strict=True)
            ]
        )
        of_source = _table([s.block_row[: skip // size] for s, skip in zip(sequences, slots, strict=True)])
        of_output = _table(
            [
                s.block_row[skip // size : -(-end // size)]
                for s, skip, (_, end) in zip(sequences, slots, chunks, strict=True)
            ]
        )
        lengths = np.array([len(sequence.request.source_token_ids) for sequence in sequences])
        at = self._on_device(positions)
        attention = self._attention(
            source_blocks=self._on_device(of_source.repeat(counts, axis=0)),
            source_lengths=self._on_device(lengths.repeat(counts)),
            output_blocks=self._on_device(of_output.repeat(counts, axis=0)),
            positions=at,
        )
        ids = torch.tensor([*token_ids], device=self._device)
        lasts = np.cumsum(counts) - 1
        sampled = [row for row, (chunk, _) in enumerate(chunks) if chunk.is_last]
        logits = self._model.decoder.logits(ids, at, self._on_device(lasts[sampled]), attention)
        if self._model.rules.restrict:
            read = [
                sequences[row].token_ids[slots[row] :] if sequences[row].guide is None else None
                for row in sampled
            ]
            self._model.rules.apply(logits, read, self._model.eos_token_ids)
        return logits

    def _attention(self, **where: Tensor) -> Attend:
        """Attention of one step."""
        if self._native is not None:
            return self._native.step(**where)
        model = self._model
        return PagedCrossAttention(
            self._kv, **where, position_bias=model.decoder.position_bias, dtype=model.dtype
        )

    def _on_device(self, values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(self._device)


def _table(rows: list[Any]) -> Any:
    """Rows of blocks, filled up with block 0 to one width."""
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
