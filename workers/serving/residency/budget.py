"""The shares of a worker's models in the memory of its device. Pure.

     pinned models                                   lazy models
    | weights | step | KV | weights | step | KV | … | as many at a time as fit … |

Every model that keeps KV has an equal part for it, the lazy ones together one part for each at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.errors import ConfigurationError
from nightshift_engine.models import DeviceMemory, Footprint

GIB = 1024**3


@dataclass(frozen=True)
class Need:
    """Memory that a model will take."""

    model_id: str
    footprint: Footprint


@dataclass(frozen=True)
class Shares:
    kv: DeviceMemory
    """Memory of each model that keeps KV."""
    lazy_bytes: int
    """Bytes for all lazy models together."""


def check_pinned(pinned: Sequence[Need], total_bytes: int) -> None:
    """Raises ConfigurationError with the numbers if models that are loaded at start do not fit, with KV for a
    short conversation.
    """
    needed = sum(need.footprint.least for need in pinned)
    if needed > total_bytes:
        raise ConfigurationError(
            f"The models do not fit this worker's device together: {_listed(pinned)}; that is "
            f"{_gib(needed)} of {_gib(total_bytes)}. Name some in NIGHTSHIFT_LAZY_MODELS instead: those are "
            "loaded when work waits for them.",
            param="MODELS",
        )


def shares(pinned: Sequence[Need], lazy: Sequence[Need], left: DeviceMemory, total_bytes: int) -> Shares:
    """Shares what is left once the pinned models' weights are loaded; `total_bytes` were there before.

    Raises ConfigurationError with the numbers if a lazy model would not fit beside the pinned ones.
    """
    largest = max((need.footprint.weights + need.footprint.step for need in lazy), default=0)
    of_steps = sum(need.footprint.step for need in pinned)
    num_with_kv = sum(bool(need.footprint.kv_per_token) for need in pinned)
    parts = num_with_kv + any(need.footprint.kv_per_token for need in lazy)
    for_kv = min(left.for_kv, max(0, left.in_all - largest - of_steps))
    kv = DeviceMemory(for_kv, left.in_all - largest).shared_by(max(1, parts))
    lazy_bytes = left.in_all - of_steps - sum(_kv_bytes(need.footprint, kv) for need in pinned)
    for need in lazy:
        footprint = need.footprint
        if resident_bytes(footprint, kv) > lazy_bytes or _kv_bytes(footprint, kv) < footprint.least_kv:
            beside = f" beside {_listed(pinned)}" if pinned else ""
            raise ConfigurationError(
                f"The model {need.model_id!r} does not fit this worker's device{beside}: it needs "
                f"{_said(footprint)}, "
                f"and {_gib(max(0, lazy_bytes))} of {_gib(total_bytes)} are left for it.",
                param="LAZY_MODELS",
            )
    return Shares(kv, lazy_bytes)


def resident_bytes(footprint: Footprint, kv: DeviceMemory) -> int:
    """Bytes that a lazy model takes while it is warm."""
    return footprint.weights + footprint.step + _kv_bytes(footprint, kv)


def _kv_bytes(footprint: Footprint, kv: DeviceMemory) -> int:
    if footprint.has_fixed_kv or not footprint.kv_per_token:
        return footprint.least_kv
    return kv.for_kv


def _listed(models: Sequence[Need]) -> str:
    return "; ".join(f"{need.model_id} ({_said(need.footprint)})" for need in models)


def _said(footprint: Footprint) -> str:
    said = f"{_gib(footprint.weights)} of weights and {_gib(footprint.step)} for a step"
    if footprint.least_kv:
        said += f", and {_gib(footprint.least_kv)} of KV for {footprint.least_tokens} tokens"
    return said


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
