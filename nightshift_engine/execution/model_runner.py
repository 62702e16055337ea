"""Runs the model over a step's chunks: token counts in, logits of the sampled rows out. Decides neither."""

import time
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from ..core.batcher import Chunk
from ..core.stats import EagerReason
from .attention.interface import AttentionBackend
from .decoder.adapters.rows import one_tile
from .forward_pass import ForwardPass
from .graphs.buffers import StepBuffers
from .graphs.sizes import StepSize, step_sizes
from .graphs.step_graphs import Capture, StepGraphs
from .kv_memory import KvMemory
from .step_layout import HostStep, lay_out
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
        self._graphs: StepGraphs | None = None
        self.why_eager: EagerReason | None = None
        """The reason of steps that are no graphs. None: no step is recorded on this device."""
        self.eager_steps: Counter[str] = Counter()
        """Steps that ran kernel by kernel where they could be graphs, by their reason."""
        self.has_adapters = False
        """Whether sequences may have adapters."""
        self.threads = StepThreads() if device.type == "cpu" else None

    def record_graphs(
        self,
        capture: Capture,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        context_length: int,
        vocab_size: int,
    ) -> None:
        """Replays steps within these limits from now on."""
        self._graphs = StepGraphs.record(
            self._forward_pass,
            self._attention,
            capture,
            step_sizes(max_num_seqs, max_num_batched_tokens),
            context_length=context_length,
            block_size=self.kv.block_size,
            num_groups=len(self.kv.groups.windows),
            vocab_size=vocab_size,
            device=self.device,
        )
        self.why_eager = "too_large" if self._graphs.is_whole else "not_recorded"

    @torch.inference_mode()
    def warm_up(self, context_length: int, *, with_adapters: bool = False) -> None:
        """Computes a step of no sequence, so that every kernel is compiled before the first request."""
        size = StepSize(tokens=3, chunks=1, decodes=1, logits=1)
        groups = len(self.kv.groups.windows)
        inputs = StepBuffers([size], context_length, self.kv.block_size, groups, self.device).clear(size)
        if with_adapters:
            inputs = replace(inputs, adapted=one_tile(size.tokens).on(self.device))
        self._forward_pass(inputs, self._attention.step(inputs.layout))

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        """Computes all chunks; logits `[rows, vocabulary]` in the order given, float32.

        Each chunk that is its sequence's last has a row: that of its last token. Behind these are those of
        the tokens that score prompts.
        `promised` are the tokens of the step before, on the device, for sequences that do not know theirs.
        """
        begun_s = time.monotonic()
        return self.run(self.lay_out(chunks), promised, begun_s)

    def lay_out(self, chunks: Seq[Chunk]) -> HostStep:
        """The step that computes `chunks`, as `run` takes it."""
        return lay_out(
            chunks,
            self.kv.block_size,
            shares_prefixes=self._attention.shares_prefixes,
            has_adapters=self.has_adapters,
        )

    @torch.inference_mode()
    def run(self, step: HostStep, promised: Tensor | None = None, begun_s: float | None = None) -> Tensor:
        """Computes a step like `forward`; `begun_s` is the monotonic time at which its work began."""
        begun_s = begun_s or time.monotonic()
        logits = None
        if self._graphs is not None and _unrecorded(step) is None:
            logits = self._graphs.replay(step, promised)
        if logits is None:
            logits = self._compute(step, promised)
        if self.threads is not None:
            ended_s = time.monotonic()
            self.threads.ended(ended_s - begun_s, ended_s)
        return logits

    def _compute(self, step: HostStep, promised: Tensor | None) -> Tensor:
        """Computes a step kernel by kernel."""
        if self.why_eager is not None:
            unrecorded = None if self._graphs is None else _unrecorded(step)
            self.eager_steps[unrecorded or self.why_eager] += 1
        inputs = step.on(self.device)
        if promised is not None:
            inputs.input_ids[inputs.promised_rows] = promised[inputs.promised_sources]
        return self._forward_pass(inputs, self._attention.step(inputs.layout))

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zeros blocks whose content is not finite, before other sequences get them."""
        self.kv.clear(blocks)

    def check(self) -> None:
        """Finds nothing: what could fail has raised."""


def _unrecorded(step: HostStep) -> EagerReason | None:
    """The reason why no recorded step is like this one; None: one may be."""
    if step.num_scored:
        return "prompt_logprobs"
    return "adapters" if step.adapted is not None else None
