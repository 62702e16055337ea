"""The choice of an attention, made once when a model is loaded."""

import functools
import importlib.util
import os

import torch

from ...errors import InvalidConfig
from ..kv_memory import KvMemory
from .interface import AttentionBackend, GroupedAttention
from .native_backend import NativeAttention, native_attention_computes, native_kernels
from .torch_backend import TorchAttention
from .varlen_backend import BLOCK_SIZE_MULTIPLE, VarlenAttention, paged_varlen_attn

BACKENDS = ("torch", "native", "triton", "varlen")

TRITON_CAPABILITY_MIN = (8, 0)
"""The oldest architecture whose matrix units take bfloat16, and the oldest the tests compile for."""

HEAD_DIM_MAX = 256
"""The widest head on CUDA: of `varlen`, and of tiles of `triton` that are known to fit a multiprocessor."""

FP8_CAPABILITY_MIN = (8, 9)
"""The oldest architecture that converts e4m3."""
FP8_NEEDS = (
    "kv_cache_dtype 'fp8' needs triton and a CUDA device of compute capability "
    f"{FP8_CAPABILITY_MIN} or newer; 'int8' is as small and runs everywhere"
)


def resolve_attention_backend(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
    latent_dim: int = 0,
) -> str:
    """The fastest back end for `dtype` over KV of `kv_dtype`. Raises `InvalidConfig` if there is none."""
    kv_dtype = kv_dtype or dtype
    if name != "auto" and name not in BACKENDS:
        raise InvalidConfig(f"attention_backend must be one of {', '.join(BACKENDS)} here, got {name!r}")
    if name == "auto":
        fastest = "triton" if device.type == "cuda" else "native"
        able = (
            name for name in (fastest, "torch") if _why_not(name, device, dtype, kv_dtype, latent_dim) is None
        )
        name = next(able, fastest)
    reason = _why_not(name, device, dtype, kv_dtype, latent_dim)
    if reason is not None:
        raise InvalidConfig(f"attention_backend {name!r} does not run here: {reason}")
    return name


@functools.cache
def has_triton_kernels(device: torch.device) -> bool:
    """Whether this is a CUDA device that runs our Triton kernels."""
    return device.type == "cuda" and _why_no_triton(device, torch.float32) is None


def block_size_multiple(name: str) -> int:
    """Number of which a block's tokens must be a multiple for this back end."""
    return BLOCK_SIZE_MULTIPLE if name == "varlen" else 1


def has_transposed_keys(name: str) -> bool:
    """Whether this back end wants its `KvMemory` with transposed keys."""
    return name == "native"


def can_be_recorded(name: str) -> bool:
    """Whether a step by this back end can become a CUDA graph: it reads nothing back from the device."""
    return name == "triton"


def make_attention(name: str, kv: KvMemory, context_length: int | None = None) -> AttentionBackend:
    """The back end called `name`, as resolved, over one memory.

    `context_length` bounds the tokens of one sequence; without it, the memory does.
    """
    num_groups = len(kv.groups.windows)
    if num_groups == 1:
        return _make_attention(name, kv, context_length)
    # The native back end is its own step, so each group needs one; the others make a step for each layout.
    num_backends = num_groups if name == "native" else 1
    backends = [_make_attention(name, kv, context_length) for _ in range(num_backends)]
    return GroupedAttention(backends * (num_groups // num_backends), kv.groups.group_of)


def _make_attention(name: str, kv: KvMemory, context_length: int | None) -> AttentionBackend:
    if name == "triton":
        from .triton_backend import TritonAttention  # imports triton, which is not everywhere

        return TritonAttention(kv, context_length or kv.num_blocks * kv.block_size)
    if name == "native":
        return NativeAttention(kv)
    return VarlenAttention(kv) if name == "varlen" else TorchAttention(kv)


def _why_not(
    name: str, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype, latent_dim: int
) -> str | None:
    """Reason why this back end cannot run here; None if there is none."""
    if kv_dtype == torch.float8_e4m3fn and name != "triton":
        return FP8_NEEDS
    if name == "native":
        return _why_no_native(device, dtype, kv_dtype)
    if name == "torch":
        return None
    if name in ("triton", "varlen") and latent_dim > HEAD_DIM_MAX:
        return f"it computes heads of at most {HEAD_DIM_MAX}, the model's latent KV has {latent_dim}"
    if name == "triton":
        return _why_no_triton(device, kv_dtype)
    if kv_dtype != dtype:
        return f"it keeps KV in the dtype of the model, {dtype}, not in {kv_dtype}"
    return _why_no_varlen(device, dtype)


def _why_no_native(device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype) -> str | None:
    if device.type != "cpu":
        return f"it computes on the CPU, the model is on {device}"
    if native_kernels() is None:
        return "its kernel is turned off or cannot be built; the log says why"
    if not native_attention_computes(dtype, kv_dtype):
        return f"this CPU cannot convert {dtype} or {kv_dtype}"
    return None


def _why_no_triton(device: torch.device, kv_dtype: torch.dtype) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda":
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if is_interpreted else "it needs a CUDA device, or TRITON_INTERPRET=1 for tests"
    capability = torch.cuda.get_device_capability(device)
    if capability < TRITON_CAPABILITY_MIN:
        return f"the device has compute capability {capability}, {TRITON_CAPABILITY_MIN} is needed"
    if kv_dtype == torch.float8_e4m3fn and capability < FP8_CAPABILITY_MIN:
        return f"the device has compute capability {capability}; {FP8_NEEDS}"
    return None


def _why_no_varlen(device: torch.device, dtype: torch.dtype) -> str | None:
    if paged_varlen_attn() is None:
        return f"torch 2.12 or newer is needed, this is {torch.__version__}"
    if device.type != "cuda":
        return "it needs a CUDA device"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it computes float16 and bfloat16, the model is {dtype}"
    return None
