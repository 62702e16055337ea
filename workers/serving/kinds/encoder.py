"""Encoders in a worker."""

from functools import partial
from typing import cast

from nightshift.fleet.models import ModelKind
from nightshift.process.settings import WorkerSettings
from nightshift_engine.checkpoint.kinds import ENCODER
from nightshift_engine.core.config import DTypeName
from nightshift_engine.encoders.model import EncoderModel
from workers.serving.kinds.kind import Loaded, OnePassKind, Source, batched
from workers.serving.servers.embedding_server import EmbeddingServer


class Encoders(OnePassKind):
    """Texts to vectors."""

    model_kind = ModelKind.ENCODER
    kind = ENCODER
    has_matryoshka = True

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        encoder = EncoderModel.load(str(source.directory), cast(DTypeName, settings.dtype), settings.device)
        if source.config is not None and source.config.matryoshka is not None:
            encoder.matryoshka = source.config.matryoshka
        model = self.model(
            source,
            context_length=encoder.max_length,
            dtype=encoder.dtype,
            dimensions=encoder.dimensions,
        )
        return batched(source, partial(EmbeddingServer, model, encoder))
