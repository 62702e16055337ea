"""Models of images in a worker."""

from functools import partial
from typing import cast

from nightshift.fleet.models import ModelKind
from nightshift.process.settings import WorkerSettings
from nightshift_engine.checkpoint.kinds import IMAGE_CLASSIFIER, IMAGE_ENCODER
from nightshift_engine.core.config import DTypeName
from nightshift_engine.images.model import ImageClassifierModel, ImageEncoderModel
from workers.serving.kinds.answer_sizes import label_sizes
from workers.serving.kinds.kind import Loaded, OnePassKind, Source, batched
from workers.serving.servers.image_server import ImageEmbeddingServer, ImageScoreServer


class ImageClassifiers(OnePassKind):
    """Images to scores."""

    model_kind = ModelKind.IMAGE_CLASSIFIER
    kind = IMAGE_CLASSIFIER

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        images = ImageClassifierModel.load(
            str(source.directory), cast(DTypeName, settings.dtype), settings.device
        )
        sizes = label_sizes(images.labels.names)
        model = self.model(source, context_length=images.max_length, dtype=images.dtype, output_sizes=sizes)
        return batched(source, partial(ImageScoreServer, model, images))


class ImageEncoders(OnePassKind):
    """Images to vectors."""

    model_kind = ModelKind.IMAGE_ENCODER
    kind = IMAGE_ENCODER

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        images = ImageEncoderModel.load(
            str(source.directory), cast(DTypeName, settings.dtype), settings.device
        )
        model = self.model(
            source, context_length=images.max_length, dtype=images.dtype, dimensions=images.dimensions
        )
        return batched(source, partial(ImageEmbeddingServer, model, images))
