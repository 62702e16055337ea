"""The memory that recorded steps read: its addresses stay, and a step is written into it before a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..device.devices import ALIGN_BYTES, host_buffer
from ..step_layout import HostStep, StepInputs, inputs_of
from .sizes import StepSize


@dataclass(frozen=True, slots=True)
class _Part:
    """The place of one array in the buffer."""

    start: int  # in bytes, as is the stop
    shape: tuple[int, ...]
    is_wide: bool  # int64, else int32

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * (8 if self.is_wide else 4)

    def of_host(self, raw: NDArray[np.uint8]) -> NDArray[Any]:
        numbers = raw[self.start : self.stop].view(np.int64 if self.is_wide else np.int32)
        return numbers.reshape(self.shape)

    def of_device(self, raw: Tensor) -> Tensor:
        numbers = raw[self.start : self.stop].view(torch.int64 if self.is_wide else torch.int32)
        return numbers.view(self.shape)


class StepBuffers:
    """Inputs of all recorded steps, which are replayed one at a time.

    Sequences that decode come first, then room for more of them, then those with chunks. A sequence that is
    not there has no token; a row that is not there is token 0, and its KV goes nowhere.
    """

    def __init__(
        self,
        sizes: list[StepSize],
        context_length: int,
        block_size: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        self._context_length, self._num_groups = context_length, num_groups
        width = -(-context_length // block_size)
        self._parts = {size: _parts_of(size, num_groups) for size in sizes}
        sequences = max(size.sequences for size in sizes)
        self._block_tables = torch.zeros(num_groups, sequences, width, dtype=torch.int32, device=device)
        num_bytes = max(_end(parts) for parts in self._parts.values()) + self._block_tables.nbytes
        self._raw = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.inputs = {size: self._inputs_of(size) for size in sizes}
        """Views of the memory as the step of each size."""

    def clear(self, size: StepSize) -> StepInputs:
        """The step of this size, as one of no sequence, until the next `clear` or `fill`."""
        self._raw.zero_()
        inputs = self.inputs[size]
        for layout in inputs.layout.by_group:
            layout.slot_mapping.fill_(-1)
        return inputs

    def fill(self, step: HostStep, size: StepSize, promised: Tensor | None) -> None:
        """Writes a step that `size` holds, by one copy to the device and one on it.

        `promised` are the tokens of the step before, as `ModelRunner.forward` takes them.
        """
        parts = self._parts[size]
        places, width = _places(step, size), step.block_tables.shape[2]
        tables = _Part(_end(parts), (self._num_groups, places.stop, width), is_wide=False)
        host = host_buffer(tables.stop, self._raw.device)
        raw = host.numpy()
        raw[: tables.start] = 0
        _write(step, size, {name: part.of_host(raw) for name, part in parts.items()})
        on_host = tables.of_host(raw)
        on_host[:, : step.num_decodes] = step.block_tables[:, : step.num_decodes]
        on_host[:, places] = step.block_tables[:, step.num_decodes :]
        self._raw[: tables.stop].copy_(host, non_blocking=True)
        self._block_tables[:, : places.stop, :width].copy_(tables.of_device(self._raw))
        count = len(step.promised_rows)
        if promised is not None and count:
            inputs = self.inputs[size]
            inputs.input_ids[inputs.promised_rows[:count]] = promised[inputs.promised_sources[:count]]

    def _inputs_of(self, size: StepSize) -> StepInputs:
        tensors = {name: part.of_device(self._raw) for name, part in self._parts[size].items()}
        tensors["block_tables"] = self._block_tables[:, : size.sequences]
        most = size.tokens if size.chunks else 1
        return inputs_of(
            tensors, size.tokens, size.decodes, most, self._context_length, is_padded=size.chunks > 0
        )


def _parts_of(size: StepSize, num_groups: int) -> dict[str, _Part]:
    """Places of the arrays of `HostStep`, by name, one after the other."""
    tokens, logits, sequences = size.tokens, size.logits, size.sequences
    shapes = {
        "cu_seqlens_q": ((sequences + 1,), False),
        "seq_lens": ((sequences,), False),
        "slot_mapping": ((num_groups, tokens), True),
        "shared_tokens": ((num_groups, size.decodes), False),
        "positions": ((tokens,), True),
        "input_ids": ((tokens,), True),
        "logits_rows": ((logits,), True),
        "promised_rows": ((sequences,), True),
        "promised_sources": ((sequences,), True),
    }
    parts: dict[str, _Part] = {}
    for name, (shape, is_wide) in shapes.items():
        parts[name] = _Part(_end(parts), shape, is_wide)
    return parts


def _end(parts: Mapping[str, _Part]) -> int:
    """The first aligned byte behind the last part."""
    stop = max((part.stop for part in parts.values()), default=0)
    return -(-stop // ALIGN_BYTES) * ALIGN_BYTES


def _places(step: HostStep, size: StepSize) -> slice:
    """The places of sequences with chunks; without any, its stop is behind those that decode."""
    start = size.decodes if step.num_chunks else step.num_decodes
    return slice(start, start + step.num_chunks)


def _write(step: HostStep, size: StepSize, to: Mapping[str, NDArray[Any]]) -> None:
    """Writes a step over zeros."""
    decodes, tokens, places = step.num_decodes, step.num_tokens, _places(step, size)
    to["seq_lens"][:decodes] = step.seq_lens[:decodes]
    to["seq_lens"][places] = step.seq_lens[decodes:]
    # Sequences that are not there begin and end where the last one ends.
    to["cu_seqlens_q"][size.decodes : size.decodes + step.num_chunks] = step.cu_seqlens_q[decodes:-1]
    to["cu_seqlens_q"][size.decodes + step.num_chunks :] = tokens
    to["slot_mapping"][:, :tokens] = step.slot_mapping
    to["slot_mapping"][:, tokens:] = -1
    if step.shared_tokens is not None:
        to["shared_tokens"][:, :decodes] = step.shared_tokens[:, :decodes]
    for name in ("positions", "input_ids", "logits_rows", "promised_rows", "promised_sources"):
        array = getattr(step, name)
        to[name][: len(array)] = array
