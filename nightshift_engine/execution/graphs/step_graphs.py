"""Steps as CUDA graphs: recorded once per size at load, then replayed with a single launch.

Which sequences a step has, how long they are and where their KV lies is read from buffers that never move, so
one recording serves every step that fits it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..attention.interface import AttentionBackend
from ..forward_pass import ForwardPass
from ..step_layout import HostStep, StepInputs
from .buffers import StepBuffers
from .sizes import StepSize

log = logging.getLogger(__name__)


class Capture(Protocol):
    """Records what a function does on the device, and returns what does it again."""

    def __call__(self, function: Callable[[], None], *, warms_up: bool) -> Callable[[], object]:
        """Records `function`; with `warms_up`, it runs before, so that kernels and workspaces are there."""


class StepGraphs:
    """Recorded steps of one model. `StepGraphs.record` makes them."""

    def __init__(
        self,
        buffers: StepBuffers,
        replays: dict[StepSize, Callable[[], object]],
        logits: Tensor,
        *,
        is_whole: bool,
    ) -> None:
        self._buffers = buffers
        self._replays = replays
        self._logits = logits
        self._sizes = sorted(replays)
        self._tokens = [size.tokens for size in self._sizes]
        self.is_whole = is_whole
        """Whether every size was recorded."""

    @classmethod
    @torch.inference_mode()
    def record(
        cls,
        forward_pass: ForwardPass,
        attention: AttentionBackend,
        capture: Capture,
        sizes: list[StepSize],
        *,
        context_length: int,
        block_size: int,
        num_groups: int,
        vocab_size: int,
        device: torch.device,
    ) -> StepGraphs:
        """Records every size, largest first, so that smaller ones fit the memory of larger ones.

        Where one cannot be recorded, a line is logged, and no smaller one of its kind (with chunks, or
        without) is tried: such steps run kernel by kernel.
        """
        buffers = StepBuffers(sizes, context_length, block_size, num_groups, device)
        rows = max(size.logits for size in sizes)
        logits = torch.empty(rows, vocab_size, dtype=torch.float32, device=device)
        replays: dict[StepSize, Callable[[], object]] = {}
        failed: set[bool] = set()
        warm_tokens = 0
        for size in sorted(sizes, reverse=True):
            if (size.chunks > 0) in failed:
                continue

            def run(size: StepSize = size, inputs: StepInputs = buffers.clear(size)) -> None:
                logits[: size.logits].copy_(forward_pass(inputs, attention.step(inputs.layout)))

            try:
                # Kernels of products differ by the number of rows, which the first of that number warms up.
                replays[size] = capture(run, warms_up=size.tokens != warm_tokens)
                warm_tokens = size.tokens
            except Exception as error:  # noqa: BLE001 - whatever the model's code and CUDA make of it
                failed.add(size.chunks > 0)
                kind = "with prompts" if size.chunks else "that only decode"
                log.warning("steps %s run without CUDA graphs: %s: %s", kind, type(error).__name__, error)
        log.info("%d of %d sizes of steps recorded as CUDA graphs", len(replays), len(sizes))
        return cls(buffers, replays, logits, is_whole=not failed)

    def replay(self, step: HostStep, promised: Tensor | None) -> Tensor | None:
        """Logits `[rows, vocabulary]` of a step, valid until the next; None if no recording holds it."""
        first = bisect_left(self._tokens, step.num_tokens)
        size = next((size for size in self._sizes[first:] if size.holds(step)), None)
        if size is None:
            return None
        self._buffers.fill(step, size, promised)
        self._replays[size]()
        return self._logits[: len(step.logits_rows)]
