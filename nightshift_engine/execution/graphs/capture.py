"""Recording on a CUDA device."""

from collections.abc import Callable
from typing import Any

import torch


class CudaCapture:
    """Records CUDA graphs that share one memory pool and one stream: they are replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One for all: the pool's memory is shared within a stream, and cuBLAS keeps a workspace for each.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def __call__(self, function: Callable[[], None], *, warms_up: bool) -> Callable[[], object]:
        """The same as `Capture.__call__`."""
        if warms_up:
            self._warm_up(function)
        graph = torch.cuda.CUDAGraph()
        # It first gives back what the warm-up took outside the pool: a step's memory would be taken twice.
        # Other threads of a worker may use CUDA meanwhile (encoders): only this one's calls are recorded.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            function()
        self._pool = self._pool or graph.pool()
        return graph.replay

    def _warm_up(self, function: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)
