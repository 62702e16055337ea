"""Measures a device once, at load: the best it was seen to do, and what a decoder takes of it.

On a CPU bandwidth is that of reading the model's own weights before they are packed, and operations are those
of the linears that the engine would choose. On a GPU they are those of a copy and of a product of random
numbers: others take less power, and so run faster. A device that others keep busy meanwhile is measured too
slow.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.roofline import AttentionWork, DeviceLimits, ExpertWork, ModelWork
from ..execution.device.held_weights import held_bytes
from ..execution.experts.packed import is_experts
from ..execution.kv_memory import KvShape
from ..execution.linears.interface import LinearDType
from ..execution.linears.native import stored_dtype
from ..execution.linears.packing import fastest_pack

log = logging.getLogger(__name__)

READ_BYTES_MAX = 1 << 30
"""Bytes of weights that are read; more than any cache has."""
READ_BYTES_MIN = 8 << 20
"""A model that has less is measured by a buffer of that size."""
TENSOR_BYTES_MIN = 1 << 20
"""Smaller ones take longer to ask for than to read."""
PASSES = 2
COPY_BYTES = 1 << 28
"""Bytes that a GPU reads, and writes once more."""
COPIES = 8
LINEAR_SIZE, LINEAR_ROWS = 512, 256
"""Size of a linear layer, and of its inputs, on a CPU."""
PRODUCT_SIZE = 4096
"""Size of a square product on a GPU."""
PRODUCTS = 8

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk")
"""The names that configurations have for them."""


def measure_limits(model: Any, linear_dtype: LinearDType) -> DeviceLimits | None:
    """Limits of the model's device for layers in `linear_dtype`. None: there is no kernel."""
    device: torch.device = model.device
    try:
        limits = _of_cpu(model, linear_dtype) if device.type == "cpu" else _of_gpu(model.dtype, device)
    except LookupError:
        return None
    log.info(
        "device measured: %s reads %.1f GB/s and computes %.0f GFLOP/s in %s",
        device, limits.bytes_per_second / 1e9, limits.flops_per_second / 1e9, linear_dtype,
    )  # fmt: skip
    return limits


def read_work(
    model: Any, shapes: Mapping[int, KvShape], windows: Mapping[int, int | None], kv_dtype: torch.dtype,
    *, layer_dtype: LinearDType | None, head_dtype: LinearDType | None,
) -> ModelWork | None:  # fmt: skip
    """Work of a decoder as it was loaded, or packed in these dtypes; None where its experts are unknown."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    head_weight = getattr(head, "weight", None)
    if head_weight is None:
        return None
    experts = [module for module in model.modules() if is_experts(module)]
    num_chosen: int | None = next((value for name in _CHOSEN if (value := getattr(config, name, None))), None)
    if _says_experts(config) != bool(experts) or (experts and not num_chosen):
        return None
    of_experts = {id(parameter) for module in experts for parameter in module.parameters()}
    held = held_bytes(model)
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    layers = [
        parameter
        for parameter in model.parameters()
        if parameter.dim() >= 2 and id(parameter) not in of_experts | looked_up | {id(head_weight)}
    ]
    in_experts = [parameter for module in experts for parameter in module.parameters()]
    mixture = None
    if num_chosen and experts:
        num_experts = len(experts[0].gate_up_proj)
        mixture = ExpertWork(num_experts, num_chosen, *_sizes(in_experts, layer_dtype, held))
    return ModelWork(
        *_sizes(layers, layer_dtype, held),
        *_sizes([head_weight], head_dtype, held),
        _attention(config, shapes, windows, kv_dtype),
        mixture,
    )


def _sizes(weights: list[Tensor], dtype: LinearDType | None, held: Mapping[int, int]) -> tuple[int, int]:
    """Numbers, and the bytes they take once they are packed."""
    num_bytes = 0
    for weight in weights:
        if id(weight) in held:
            num_bytes += held[id(weight)]
            continue
        stored = weight.dtype if dtype is None else getattr(torch, stored_dtype(dtype, weight.detach()))
        num_bytes += weight.numel() * stored.itemsize
    return sum(weight.numel() for weight in weights), num_bytes


def _says_experts(config: Any) -> bool:
    return any((getattr(config, name, None) or 0) > 1 for name in _EXPERTS)


def _attention(
    config: Any, shapes: Mapping[int, KvShape], windows: Mapping[int, int | None], kv_dtype: torch.dtype
) -> tuple[AttentionWork, ...]:
    num_heads = getattr(config, "num_attention_heads", None) or 0
    by_window: dict[int | None, tuple[int, int]] = {}
    for layer, shape in shapes.items():
        kv_bytes, pair_flops = by_window.get(windows.get(layer), (0, 0))
        by_window[windows.get(layer)] = (
            kv_bytes + shape.bytes_per_token(kv_dtype),
            pair_flops + 2 * num_heads * (shape.key_dim + shape.value_dim),
        )
    return tuple(AttentionWork(window, *work) for window, work in by_window.items())


def _large_weights(model: Any) -> list[Tensor]:
    """Large weights as integers of eight bytes, which are summed as fast as they can be read."""
    chosen: list[Tensor] = []
    left = READ_BYTES_MAX
    for parameter in model.parameters():
        size = parameter.numel() * parameter.element_size()
        if parameter.is_contiguous() and size % 8 == 0 and TENSOR_BYTES_MIN <= size <= left:
            chosen.append(parameter.detach().view(-1).view(torch.int64))
            left -= size
    if READ_BYTES_MAX - left < READ_BYTES_MIN:
        return [torch.ones(READ_BYTES_MIN // 8, dtype=torch.int64, device=model.device)]
    return chosen


def _of_cpu(model: Any, dtype: LinearDType) -> DeviceLimits:
    """Raises LookupError."""
    weights = _large_weights(model)

    def read() -> None:
        for weight in weights:
            weight.sum()

    num_bytes = 8 * sum(weight.numel() for weight in weights)
    bandwidth = num_bytes / _least_seconds(read, model.device, PASSES)
    _, seconds = fastest_pack(dtype, LINEAR_SIZE, LINEAR_SIZE, LINEAR_ROWS)
    if not seconds:
        raise LookupError(f"the clock does not tell how long {dtype} takes")
    return DeviceLimits(bandwidth, 2 * LINEAR_SIZE**2 * LINEAR_ROWS / seconds)


def _of_gpu(dtype: torch.dtype, device: torch.device) -> DeviceLimits:
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    copying_s = _least_seconds(lambda: copy.copy_(source), device, COPIES)
    square = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, device=device).to(dtype)
    out = torch.empty_like(square)
    product_s = _least_seconds(lambda: torch.mm(square, square, out=out), device, PRODUCTS)
    return DeviceLimits(2 * COPY_BYTES / copying_s, 2 * PRODUCT_SIZE**3 / product_s)


def _least_seconds(call: Callable[[], object], device: torch.device, times: int) -> float:
    """The shortest of so many calls, after one that is not counted."""

    def timed() -> float:
        began_s = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began_s

    timed()
    return min(timed() for _ in range(times))
