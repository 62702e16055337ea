"""Classifiers and rerankers in a worker."""

from functools import partial
from typing import cast

from nightshift.fleet.models import ModelKind
from nightshift.process.settings import WorkerSettings
from nightshift_engine.checkpoint.kinds import CLASSIFIER, read_checkpoint
from nightshift_engine.checkpoint.kinds.logit_score import is_generative_reranker
from nightshift_engine.core.config import DTypeName
from nightshift_engine.encoders.scoring.classifier import ClassifierModel
from nightshift_engine.encoders.scoring.generative_reranker import GenerativeReranker
from nightshift_engine.encoders.scoring.scorer import TextScorer
from workers.serving.kinds.answer_sizes import label_sizes
from workers.serving.kinds.kind import Loaded, OnePassKind, Source, batched
from workers.serving.servers.score_server import ScoreServer


class Classifiers(OnePassKind):
    """Texts, or pairs of them, to scores."""

    model_kind = ModelKind.CLASSIFIER
    kind = CLASSIFIER

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        directory, dtype = str(source.directory), cast(DTypeName, settings.dtype)
        ranks_by_tokens = is_generative_reranker(read_checkpoint(directory))
        load = GenerativeReranker.load if ranks_by_tokens else ClassifierModel.load
        scorer: TextScorer = load(directory, dtype, settings.device)
        sizes = label_sizes(scorer.labels.names)
        model = self.model(source, context_length=scorer.max_length, dtype=scorer.dtype, output_sizes=sizes)
        return batched(source, partial(ScoreServer, model, scorer))
