"""Runs the model over a step's chunks: token counts in, logits of the sampled rows out. Decides neither."""

import time
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ..core.batcher import Chunk
from .attention.interface import AttentionBackend
from .cuda_graphs import Capture, DecodeGraphs
from .forward_pass import ForwardPass
from .kv_memory import KvMemory
from .step_layout import HostStep, arrange, place
from .step_threads import StepThreads

_CPU_ALLOCATOR_SAYS = ("can't allocate memory", "not enough memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller step may succeed where this one failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_ALLOCATOR_SAYS)


class ModelRunner:
    """A model, its KV memory, and the way from chunks to logits."""

    def __init__(
        self, forward_pass: ForwardPass, kv: KvMemory, attention: AttentionBackend, device: torch.device
    ) -> None:
        self._forward_pass = forward_pass
        self.kv = kv
        self._attention = attention
        self.device = device
        self._graphs: DecodeGraphs | None = None
        self._threads = StepThreads() if device.type == "cpu" else None

    def record_graphs(
        self, capture: Capture, *, max_num_seqs: int, context_length: int, vocab_size: int
    ) -> None:
        """Replays decoding steps from now on. The last block of KV memory is for dummy rows alone."""
        self._graphs = DecodeGraphs.record(
            self._forward_pass,
            self._attention,
            capture,
            max_num_seqs=max_num_seqs,
            context_length=context_length,
            block_size=self.kv.block_size,
            dummy_block=self.kv.num_blocks - 1,
            vocab_size=vocab_size,
            device=self.device,
            num_groups=len(self.kv.groups.windows),
        )

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        """Computes all chunks; logits `[rows, vocabulary]` in the order given, float32.

        Each chunk that is its sequence's last has a row: that of its last token.
        `promised` are the tokens of the step before, on the device, for sequences that do not know theirs.
        """
        begun_s = time.monotonic()
        return self.run(arrange(chunks, self.kv.block_size), promised, begun_s)

    @torch.inference_mode()
    def run(self, step: HostStep, promised: Tensor | None = None, begun_s: float | None = None) -> Tensor:
        """Computes a step like `forward`; `begun_s` is the monotonic time at which its work began."""
        begun_s = begun_s or time.monotonic()
        inputs = place(step, self.device)
        if promised is not None:
            inputs.input_ids[inputs.promised_rows] = promised[inputs.promised_sources]
        logits = self._graphs.replay(inputs) if self._graphs is not None else None
        if logits is None:
            logits = self._forward_pass(inputs, self._attention.step(inputs.layout))
        if self._threads is not None:
            ended_s = time.monotonic()
            self._threads.ended(ended_s - begun_s, ended_s)
        return logits

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zeros blocks whose content is not finite, before other sequences get them."""
        self.kv.clear(blocks)

    def check(self) -> None:
        """Finds nothing: what could fail has raised."""
