"""Which attention computes: chosen once, when a model is loaded."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..errors import InvalidConfig
from .attention import AttentionBackend
from .kv_memory import KvMemory
from .torch_attention import TorchAttention

BACKENDS: dict[str, Callable[[KvMemory], AttentionBackend]] = {"torch": TorchAttention}


def resolve_attention_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The back end behind "auto": the fastest that computes `dtype` on `device`.

    Raises `InvalidConfig` for one that was asked for by name and does not run here.
    """
    if name == "auto":
        return "torch"
    if name not in BACKENDS:
        raise InvalidConfig(f"attention_backend must be one of {', '.join(BACKENDS)} here, got {name!r}")
    return name


def make_attention(name: str, kv: KvMemory) -> AttentionBackend:
    """The back end called `name`, as resolved, over one memory."""
    return BACKENDS[name](kv)
