"""The engine's boundary: requests in, outputs out. Knows tokens, not jobs.

Importing this package costs nothing: `Engine` and `generate`, which need torch, are imported when they are
first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core.config import EngineConfig
from .core.made_by import MadeBy
from .core.request import (
    Completion,
    FinishReason,
    Output,
    PriorityClass,
    Request,
    RequestTimes,
    TokenLogprobs,
)
from .core.sampling_params import SamplingParams
from .core.stats import EncoderStats, EngineStats
from .errors import (
    ChatTemplateFailed,
    DuplicateRequest,
    EngineError,
    GrammarFailed,
    IncompatibleState,
    InvalidConfig,
    InvalidRequest,
    InvalidSamplingParams,
    InvalidState,
    InvalidTokenIds,
    ModelLoadFailed,
    PromptTooLong,
    UnsupportedModel,
)
from .guidance.grammar import Grammar

if TYPE_CHECKING:
    from .engine import Engine
    from .offline import generate

__all__ = [
    "ChatTemplateFailed",
    "Completion",
    "DuplicateRequest",
    "EncoderStats",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "Grammar",
    "GrammarFailed",
    "IncompatibleState",
    "InvalidConfig",
    "InvalidRequest",
    "InvalidSamplingParams",
    "InvalidState",
    "InvalidTokenIds",
    "MadeBy",
    "ModelLoadFailed",
    "Output",
    "PriorityClass",
    "PromptTooLong",
    "Request",
    "RequestTimes",
    "SamplingParams",
    "TokenLogprobs",
    "UnsupportedModel",
    "generate",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from .engine import Engine

        return Engine
    if name == "generate":
        from .offline import generate

        return generate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
