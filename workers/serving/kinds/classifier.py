"""Classifiers and rerankers in a worker."""

from functools import partial
from typing import cast

from nightshift.fleet.models import ModelKind
from nightshift.settings import WorkerSettings
from workers.engine.config import DTypeName
from workers.engine.encoders.classifier import ClassifierModel
from workers.engine.kinds import CLASSIFIER
from workers.serving.kinds.kind import Loaded, OnePassKind, Source, batched
from workers.serving.score_server import ScoreServer


class Classifiers(OnePassKind):
    """Texts, or pairs of them, to scores."""

    model_kind = ModelKind.CLASSIFIER
    kind = CLASSIFIER

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        classifier = ClassifierModel.load(
            str(source.directory), cast(DTypeName, settings.dtype), settings.device
        )
        model = self.model(source, context_length=classifier.max_length, dtype=classifier.dtype)
        return batched(source, partial(ScoreServer, model, classifier))
