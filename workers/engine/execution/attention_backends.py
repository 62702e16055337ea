"""Which attention computes: chosen once, when a model is loaded."""

from __future__ import annotations

import importlib.util
import os

import torch

from ..errors import InvalidConfig
from .attention import AttentionBackend
from .kv_memory import KvMemory
from .torch_attention import TorchAttention
from .varlen_attention import BLOCK_SIZE_MULTIPLE, VarlenAttention, paged_varlen_attn

BACKENDS = ("torch", "triton", "varlen")

TRITON_CAPABILITY_MIN = (8, 0)
"""The oldest architecture whose matrix units take bfloat16, and the oldest the tests compile for."""


def resolve_attention_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The back end behind "auto": the fastest that computes `dtype` on `device`.

    Raises `InvalidConfig` for one that was asked for by name and does not run here.
    """
    if name == "auto":
        return "triton" if device.type == "cuda" and _why_no_triton(device) is None else "torch"
    if name not in BACKENDS:
        raise InvalidConfig(f"attention_backend must be one of {', '.join(BACKENDS)} here, got {name!r}")
    reason = None
    if name == "triton":
        reason = _why_no_triton(device)
    elif name == "varlen":
        reason = _why_no_varlen(device, dtype)
    if reason is not None:
        raise InvalidConfig(f"attention_backend {name!r} does not run here: {reason}")
    return name


def block_size_multiple(name: str) -> int:
    """What a block's tokens must be a multiple of for this back end."""
    return BLOCK_SIZE_MULTIPLE if name == "varlen" else 1


def make_attention(name: str, kv: KvMemory, context_length: int | None = None) -> AttentionBackend:
    """The back end called `name`, as resolved, over one memory.

    `context_length` bounds the tokens of one sequence; without it, the memory does.
    """
    if name == "triton":
        from .triton_attention import TritonAttention  # imports triton, which is not everywhere

        return TritonAttention(kv, context_length or kv.num_blocks * kv.block_size)
    return VarlenAttention(kv) if name == "varlen" else TorchAttention(kv)


def _why_no_triton(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda":
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if is_interpreted else "it needs a CUDA device, or TRITON_INTERPRET=1 for tests"
    capability = torch.cuda.get_device_capability(device)
    if capability < TRITON_CAPABILITY_MIN:
        return f"the device has compute capability {capability}, {TRITON_CAPABILITY_MIN} is needed"
    return None


def _why_no_varlen(device: torch.device, dtype: torch.dtype) -> str | None:
    if paged_varlen_attn() is None:
        return f"torch 2.12 or newer is needed, this is {torch.__version__}"
    if device.type != "cuda":
        return "it needs a CUDA device"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it computes float16 and bfloat16, the model is {dtype}"
    return None
