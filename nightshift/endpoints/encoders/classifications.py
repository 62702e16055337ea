"""POST /v1/classifications."""

import json
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, field_validator

from nightshift.endpoints.answer_objects import ClassificationList
from nightshift.endpoints.answers import ANSWER_HEAD_BYTES, AnswerSize
from nightshift.endpoints.encoders import images
from nightshift.endpoints.encoders.scoring import (
    ENTRY_BYTES,
    Scored,
    ScoredText,
    ScoringEndpoint,
    ScoringRequest,
    check_count,
    checked_text,
    floats,
    json_text,
    no_values,
    packed,
    usage_json,
)
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.requests import Count, ModelRequest
from nightshift.endpoints.results import Identity, Origin, Result, Values
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.json_text import json_bytes

Ranking = Sequence[tuple[str, float]]
"""Labels and scores, in the order in which they are shown."""


class ClassifyRequest(ScoringRequest):
    """POST /v1/classify. `input` is a text, a pair of texts or an image, or a list of these."""

    input: Any

    @field_validator("input")
    @classmethod
    def _input(cls, value: object) -> object:
        texts_of(value)
        return value

    @property
    def texts(self) -> Sequence[ScoredText]:
        return texts_of(self.input)


class ClassificationRequest(ClassifyRequest):
    """POST /v1/classifications. `top_k` labels, the best first; by default all, in the model's order."""

    top_k: Count | None = None

    @property
    def labels_max(self) -> int | None:
        return self.top_k


class Classifications(ScoringEndpoint):
    route = "/v1/classifications"
    name = "classifications"
    operation = "create_classifications"
    summary = "Score texts or images for each label of a classifier"
    request_type: type[ModelRequest] = ClassificationRequest
    answer_type: type[BaseModel] | None = ClassificationList
    model_kinds: Collection[ModelKind] = (ModelKind.CLASSIFIER, ModelKind.IMAGE_CLASSIFIER)
    ranks = False
    texts_field = "input"
    shows_labels = 1  # times in an answer
    columns: Mapping[str, ColumnType] = {
        "label": ColumnType.TEXT,
        "score": ColumnType.FLOAT,
        "labels": ColumnType.TEXT,
        "scores": ColumnType.FLOATS,
    }

    def count(self, texts: object) -> int:
        return len(texts_of(texts))

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "input": placeholder}

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        assert isinstance(request, ScoringRequest), "parsed by this endpoint"
        sizes, top_k = model.output_sizes, request.labels_max
        if sizes is None:
            return None
        scores = sizes.labels if top_k is None else min(sizes.labels, top_k * sizes.label)
        return AnswerSize(
            ENTRY_BYTES + sizes.label + self.shows_labels * scores,
            {"input": len(request.texts)},
            ANSWER_HEAD_BYTES + json_bytes(request.model),
            {} if top_k is None else {"top_k": top_k},
        )

    def result(self, request: ModelRequest, scored: Scored) -> Result:
        """A row with one text has its scores as values; others have the body alone."""
        assert isinstance(request, ScoringRequest), "parsed by this endpoint"
        top_k = request.labels_max
        rankings = [_ranked(scored.labels, floats(scores), top_k) for scores in scored.scores]
        usage = Usage(scored.prompt_tokens)
        if len(rankings) == 1:
            return Result(200, usage, self.ranking_values(rankings[0]))
        body = self.shape(scored.identity, request.model, rankings, usage)
        return Result(200, usage, no_values(self.columns), body)

    def ranking_values(self, ranking: Ranking) -> Values:
        """The values of a row with one text."""
        label, score = max(ranking, key=itemgetter(1))
        return {
            "label": label,
            "score": packed([score]),
            "labels": json_text([label for label, _ in ranking]),
            "scores": packed([score for _, score in ranking]),
        }

    def shape(self, identity: Identity, model: str, rankings: Sequence[Ranking], usage: Usage) -> JsonObject:
        """The body of an answer."""
        return {
            "object": "list",
            "model": model,
            "data": [
                {
                    "index": index,
                    "label": max(ranking, key=itemgetter(1))[0],
                    "scores": [{"label": label, "score": score} for label, score in ranking],
                }
                for index, ranking in enumerate(rankings)
            ],
            "usage": usage_json(usage),
        }

    def values(self, body: JsonObject) -> Values:
        data = body.get("data") or []
        if len(data) != 1:
            return no_values(self.columns)
        return self.ranking_values([(score["label"], score["score"]) for score in data[0]["scores"]])

    def body(self, origin: Origin, values: Values, usage: Usage) -> JsonObject:
        labels, scores = values["labels"], values["scores"]
        assert isinstance(labels, str), "a row with one text has its labels"
        assert isinstance(scores, bytes), "and their scores"
        ranking = [*zip(json.loads(labels), floats(scores), strict=True)]
        return self.shape(origin.identity, origin.model, [ranking], usage)


def _ranked(labels: Sequence[str], scores: Sequence[float], top_k: int | None) -> Ranking:
    """The labels in the model's order; with `top_k`, the best so many, best first."""
    ranking = [*zip(labels, scores, strict=True)]
    return ranking if top_k is None else sorted(ranking, key=itemgetter(1), reverse=True)[:top_k]


def texts_of(value: object) -> list[ScoredText]:
    """A text, a pair, an image, or a list of these. Raises ValueError."""
    if not isinstance(value, list):
        return [_text(value, "input")]
    check_count(len(value), "input")
    texts = [_text(part, f"input[{index}]") for index, part in enumerate(value)]
    images.check_count([text for text in texts if text.is_image])
    return texts


def _text(value: object, place: str) -> ScoredText:
    """A pair is as for the pipelines of transformers: {"text": …, "text_pair": …}."""
    if not isinstance(value, dict):
        return ScoredText(checked_text(value, place), None, place)
    if images.is_image(value):
        return ScoredText(images.image_of(value, place).reference, None, f"{place}.image", is_image=True)
    text = checked_text(value.get("text"), f"{place}.text")
    if value.get("text_pair") is None:
        return ScoredText(text, None, f"{place}.text")
    pair_place = f"{place}.text_pair"
    return ScoredText(text, checked_text(value["text_pair"], pair_place), pair_place, f"{place}.text")
