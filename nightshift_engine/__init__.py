"""A continuous-batching engine: requests in, tokens and text out. Knows tokens, not jobs.

Public beside this module are `errors`, `encoders` and `models`; nothing outside imports deeper. Importing it
costs nothing: `Engine` and `generate`, which need torch, are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checkpoint.files import HUB_FILES, HUB_FILES_IGNORED
from .core.config import AdapterPath, EngineConfig
from .core.live_request import RequestLimits
from .core.request import Completion, MadeBy, Output, PromptLogprobs, Request, RequestTimes, TokenLogprobs
from .core.sampling_params import SamplingParams
from .core.stats import ClassHistograms, EncoderStats, EngineHistograms, EngineStats, Histogram
from .errors import EngineError, InvalidRequest
from .execution.device.openmp import limit_spinning
from .guidance.grammar import Grammar

if TYPE_CHECKING:
    from .engine import Engine
    from .offline import generate

__all__ = [
    "HUB_FILES",
    "HUB_FILES_IGNORED",
    "AdapterPath",
    "ClassHistograms",
    "Completion",
    "EncoderStats",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineHistograms",
    "EngineStats",
    "Grammar",
    "Histogram",
    "InvalidRequest",
    "MadeBy",
    "Output",
    "PromptLogprobs",
    "Request",
    "RequestLimits",
    "RequestTimes",
    "SamplingParams",
    "TokenLogprobs",
    "generate",
    "limit_spinning",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from .engine import Engine

        return Engine
    if name == "generate":
        from .offline import generate

        return generate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
