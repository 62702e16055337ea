"""Kinds whose inputs are done after one pass: encoders and classifiers of texts and of images."""

from collections.abc import Callable
from functools import partial

from nightshift.process.settings import WorkerSettings
from nightshift_engine.encoders import EncoderConfig
from nightshift_engine.models import (
    CLASSIFIER,
    ENCODER,
    IMAGE_CLASSIFIER,
    IMAGE_ENCODER,
    DeviceMemory,
    EncoderModel,
    Footprint,
    ImageClassifierModel,
    ImageEncoderModel,
    encoder_footprint,
    load_scorer,
)
from workers.serving.kinds.answer_sizes import label_sizes
from workers.serving.kinds.kind import Loaded, ServedKind, Source
from workers.serving.model_server import OnFatal
from workers.serving.servers.encoder_server import EmbeddingServer
from workers.serving.servers.image_server import ImageEmbeddingServer, ImageScoreServer
from workers.serving.servers.score_server import ScoreServer
from workers.serving.stepping_server import SteppingServer


class OnePassKind(ServedKind):
    """A kind whose inputs are done after one pass: its models need no memory between their steps."""

    def footprint(self, source: Source, settings: WorkerSettings) -> Footprint:
        return encoder_footprint(source.directory, settings.dtype, settings.device)


def batched(source: Source, server: Callable[[OnFatal, EncoderConfig | None], SteppingServer]) -> Loaded:
    """A model that keeps no memory between its steps, batched as its configuration says."""

    def serve(memory: DeviceMemory | None, on_fatal: OnFatal) -> SteppingServer:
        with source.batching() as config:
            return server(on_fatal, config)

    return Loaded(source.path_or_id, serve)


class Encoders(OnePassKind):
    """Texts to vectors."""

    kind = ENCODER
    has_matryoshka = True

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        encoder = EncoderModel.load(str(source.directory), settings.dtype, settings.device)
        if source.config is not None and source.config.matryoshka is not None:
            encoder.matryoshka = source.config.matryoshka
        model = self.model(
            source,
            context_length=encoder.max_length,
            dtype=encoder.dtype,
            dimensions=encoder.dimensions,
        )
        return batched(source, partial(EmbeddingServer, model, encoder))


class Classifiers(OnePassKind):
    """Texts, or pairs of them, to scores."""

    kind = CLASSIFIER

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        scorer = load_scorer(source.directory, settings.dtype, settings.device)
        sizes = label_sizes(scorer.labels.names)
        model = self.model(source, context_length=scorer.max_length, dtype=scorer.dtype, output_sizes=sizes)
        return batched(source, partial(ScoreServer, model, scorer))


class ImageClassifiers(OnePassKind):
    """Images to scores."""

    kind = IMAGE_CLASSIFIER

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        images = ImageClassifierModel.load(str(source.directory), settings.dtype, settings.device)
        sizes = label_sizes(images.labels.names)
        model = self.model(source, context_length=images.max_length, dtype=images.dtype, output_sizes=sizes)
        return batched(source, partial(ImageScoreServer, model, images))


class ImageEncoders(OnePassKind):
    """Images to vectors."""

    kind = IMAGE_ENCODER

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        images = ImageEncoderModel.load(str(source.directory), settings.dtype, settings.device)
        model = self.model(
            source, context_length=images.max_length, dtype=images.dtype, dimensions=images.dimensions
        )
        return batched(source, partial(ImageEmbeddingServer, model, images))
