"""Decoding steps as CUDA graphs: recorded once per batch size, then replayed with a single launch.

Inputs are copied into buffers that never move, and a batch is filled up with dummy rows in a reserved block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .attention.interface import AttentionBackend
from .forward_pass import ForwardPass
from .step_layout import StepInputs, StepLayout

log = logging.getLogger(__name__)

Capture = Callable[[Callable[[], None]], Callable[[], object]]
"""Records what a function does on the device, and returns what does it again."""

WARM_UPS = 2
"""Runs before recording: kernels are compiled and workspaces allocated in the first."""


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Ascending batch sizes to record, the last of which holds `max_num_seqs`."""
    sizes = [1, 2, 4, *range(8, 257, 8)]
    while sizes[-1] < max_num_seqs:
        sizes.append(sizes[-1] + 16)
    return [size for n, size in enumerate(sizes) if n == 0 or sizes[n - 1] < max_num_seqs]


class DecodeGraphs:
    """Recorded decoding steps of one model. `DecodeGraphs.record` makes them."""

    def __init__(self, buffers: _Buffers, replays: dict[int, Callable[[], object]], logits: Tensor) -> None:
        self._buffers = buffers
        self._replays = replays
        self._logits = logits
        self._sizes = sorted(replays)

    @classmethod
    @torch.inference_mode()
    def record(
        cls,
        forward_pass: ForwardPass,
        attention: AttentionBackend,
        capture: Capture,
        *,
        max_num_seqs: int,
        context_length: int,
        block_size: int,
        dummy_block: int,
        vocab_size: int,
        device: torch.device,
        num_groups: int = 1,
    ) -> DecodeGraphs | None:
        """Records every size, largest first, so that smaller ones fit the memory of larger ones.

        None, with one line in the log, if the model cannot be recorded: it then runs step by step.
        """
        sizes = graph_sizes(max_num_seqs)
        buffers = _Buffers(sizes[-1], context_length, block_size, dummy_block, device, num_groups)
        logits = torch.empty(sizes[-1], vocab_size, dtype=torch.float32, device=device)
        replays = {}
        for size in reversed(sizes):
            inputs = buffers.inputs(size)

            def run(size: int = size, inputs: StepInputs = inputs) -> None:
                logits[:size].copy_(forward_pass(inputs, attention.step(inputs.layout)))

            try:
                replays[size] = capture(run)
            except Exception as error:  # noqa: BLE001 - whatever the model's code and CUDA make of it
                log.warning("decoding runs without CUDA graphs: %s: %s", type(error).__name__, error)
                return None
        log.info("decoding recorded as %d CUDA graphs, up to %d sequences", len(sizes), sizes[-1])
        return cls(buffers, replays, logits)

    def replay(self, inputs: StepInputs) -> Tensor | None:
        """Logits `[rows, vocabulary]` of a decoding step, valid until the next; None if it is not one."""
        count = inputs.layout.num_tokens
        is_decoding = inputs.layout.num_decodes == count and len(inputs.logits_rows) == count
        if not is_decoding or count > self._sizes[-1]:
            return None
        size = next(size for size in self._sizes if size >= count)
        self._buffers.fill(inputs, size)
        self._replays[size]()
        return self._logits[:count]


class _Buffers:
    """The addresses that all graphs read; a graph of n rows reads the first n."""

    def __init__(
        self,
        rows: int,
        context_length: int,
        block_size: int,
        dummy_block: int,
        device: torch.device,
        num_groups: int,
    ) -> None:
        def full(*size: int, value: int, dtype: torch.dtype) -> Tensor:
            return torch.full(size, value, dtype=dtype, device=device)

        self._context_length = context_length
        self._dummy_slot = dummy_block * block_size
        self._dummy_block = dummy_block
        width = -(-context_length // block_size)
        self._cu_seqlens_q = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._input_ids = full(rows, value=0, dtype=torch.int64)
        self._positions = full(rows, value=0, dtype=torch.int64)
        self._slot_mappings = [
            full(rows, value=self._dummy_slot, dtype=torch.int64) for _ in range(num_groups)
        ]
        self._seq_lens = full(rows, value=1, dtype=torch.int32)
        self._block_tables = [
            full(rows, width, value=dummy_block, dtype=torch.int32) for _ in range(num_groups)
        ]
        self._shared_tokens = full(num_groups, rows, value=0, dtype=torch.int32)
        self._logits_rows = torch.arange(rows, device=device)
        self._none = full(0, value=0, dtype=torch.int64)

    def inputs(self, size: int) -> StepInputs:
        """A step of `size` rows, each of one new token, that reads these buffers."""
        layout, *others = (
            StepLayout(
                cu_seqlens_q=self._cu_seqlens_q[: size + 1],
                seq_lens=self._seq_lens[:size],
                block_tables=block_tables[:size],
                slot_mapping=slot_mapping[:size],
                positions=self._positions[:size],
                num_tokens=size,
                num_decodes=size,
                max_query_len=1,
                max_seq_len=self._context_length,
                shared_tokens=shared_tokens[:size],
            )
            for block_tables, slot_mapping, shared_tokens in zip(
                self._block_tables, self._slot_mappings, self._shared_tokens, strict=True
            )
        )
        layout = replace(layout, other_groups=tuple(others))
        return StepInputs(
            layout,
            input_ids=self._input_ids[:size],
            logits_rows=self._logits_rows[:size],
            promised_rows=self._none,
            promised_sources=self._none,
        )

    def fill(self, inputs: StepInputs, size: int) -> None:
        """A step's rows become the last of `size`: dummy rows are the shortest, and the shortest go first."""
        layout, first = inputs.layout, size - inputs.layout.num_tokens
        rows = slice(first, size)
        self._input_ids[rows].copy_(inputs.input_ids)
        self._positions[rows].copy_(layout.positions)
        self._seq_lens[rows].copy_(layout.seq_lens)
        by_group = zip(
            self._block_tables, self._slot_mappings, self._shared_tokens, layout.by_group, strict=True
        )
        for block_tables, slot_mapping, shared_tokens, of_group in by_group:
            if of_group.shared_tokens is not None:
                shared_tokens[rows].copy_(of_group.shared_tokens)
            block_tables[rows, : of_group.block_tables.shape[1]].copy_(of_group.block_tables)
            slot_mapping[rows].copy_(of_group.slot_mapping)
        torch.add(inputs.logits_rows, first, out=self._logits_rows[: layout.num_tokens])
        if first:
            self._input_ids[:first].fill_(0)
            self._positions[:first].fill_(0)
            self._seq_lens[:first].fill_(1)
            self._shared_tokens[:, :first].fill_(0)
            for block_tables, slot_mapping in zip(self._block_tables, self._slot_mappings, strict=True):
                slot_mapping[:first].fill_(self._dummy_slot)
                block_tables[:first, 0].fill_(self._dummy_block)
            self._logits_rows[layout.num_tokens : size].fill_(0)


class CudaCapture:
    """Records CUDA graphs that share one memory pool: they are replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, function: Callable[[], None]) -> Callable[[], object]:
        """Runs `function` until it is warm, then records it."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of a worker may use CUDA meanwhile (encoders): only this one's calls are recorded.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            function()
        self._pool = self._pool or graph.pool()
        return graph.replay
