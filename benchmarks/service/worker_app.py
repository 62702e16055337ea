"""The worker's Celery application with pools for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from nightshift.settings import WorkerSettings
from workers import composition
from workers.app import app
from workers.intake.pool import EnginePool
from workers.runtime import Runtime
from workers.serving.embedding_server import EmbeddingServer
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.models import LazyModel

__all__ = ["RecordingPool", "ZerosPool", "app"]


class RecordingPool(EnginePool):
    """Encoders say what they compute."""

    def compose(self) -> Runtime:
        return composition.compose(load_recorded)


class ZerosPool(EnginePool):
    """Every model is an encoder that answers zeros, without torch."""

    def compose(self) -> Runtime:
        return composition.compose(load_zeros)


def load_recorded(settings: WorkerSettings, on_fatal: OnFatal) -> Sequence[ModelServer | LazyModel]:
    from benchmarks.recorded_encoder import RecordedEncoder
    from workers.serving.kinds import encoder

    assert "EncoderModel" in vars(encoder), "encoders are loaded elsewhere now"
    vars(encoder)["EncoderModel"] = RecordedEncoder
    return composition.load_models(settings, on_fatal)


def load_zeros(settings: WorkerSettings, on_fatal: OnFatal) -> Sequence[ModelServer]:
    from benchmarks.zeros import MODEL, Zeros

    return [EmbeddingServer(MODEL, cast(Any, Zeros()), on_fatal)]
