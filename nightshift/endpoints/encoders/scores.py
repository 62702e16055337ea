"""POST /v1/score, in vLLM's shape."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationInfo, field_validator

from nightshift.endpoints.answer_objects import ScoreList
from nightshift.endpoints.encoders.scoring import (
    RankingRequest,
    Scored,
    ScoredText,
    ScoringEndpoint,
    check_count,
    check_repeated,
    checked_text,
    floats,
    no_values,
    packed,
    usage_json,
)
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Identity, Origin, Result, Values
from nightshift.jobs import JsonObject, Usage


class ScoreRequest(RankingRequest):
    """POST /v1/score: a text with each of others, or as many with as many."""

    text_1: Any
    text_2: Any

    @field_validator("text_1")
    @classmethod
    def _text_1(cls, value: object) -> object:
        _listed(value)
        return value

    @field_validator("text_2")
    @classmethod
    def _text_2(cls, value: object, info: ValidationInfo) -> object:
        second = _listed(value)
        if "text_1" not in info.data:  # it is wrong, and is named
            return value
        first = _listed(info.data["text_1"])
        if len(first) not in (1, len(second)):
            raise ValueError(
                f"text_1 must be one text, or as many as text_2: there are {len(first)} and {len(second)}"
            )
        if len(first) == 1:
            check_repeated(first[0], len(second), "text_1")
        check_repeated(info.data.get("instruction") or "", len(second), "instruction")
        return value

    @property
    def texts(self) -> Sequence[ScoredText]:
        first, second = _listed(self.text_1), _listed(self.text_2)
        places, first_places = _places("text_2", len(second)), _places("text_1", len(first))
        if len(first) == 1:
            first, first_places = first * len(second), first_places * len(second)
        return [*map(ScoredText, first, second, places, first_places)]


class Score(ScoringEndpoint):
    route = "/v1/score"
    name = "score"
    operation = "create_score"
    summary = "Score pairs of texts"
    request_type = ScoreRequest
    answer_type = ScoreList
    ranks = True
    texts_field = "text_2"
    columns: Mapping[str, ColumnType] = {"score": ColumnType.FLOAT, "scores": ColumnType.FLOATS}

    def count(self, texts: object) -> int:
        return len(_listed(texts))

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        """The first text of a row is its column `query`."""
        return {"model": model, "text_1": "{{query}}", "text_2": placeholder}

    def result(self, request: ModelRequest, scored: Scored) -> Result:
        scores = scored.first_scores
        return Result(200, Usage(scored.prompt_tokens), _values(scores))

    def values(self, body: JsonObject) -> Values:
        data = body.get("data")
        return _values([pair["score"] for pair in data]) if data else no_values(self.columns)

    def body(self, origin: Origin, values: Values, usage: Usage) -> JsonObject:
        scores = values["scores"]
        assert isinstance(scores, bytes), "every answer has scores"
        return _body(origin.identity, origin.model, floats(scores), usage)


def _values(scores: Sequence[float]) -> Values:
    """A row with one pair has its score by itself as well."""
    return {"score": packed(scores) if len(scores) == 1 else None, "scores": packed(scores)}


def _body(identity: Identity, model: str, scores: Sequence[float], usage: Usage) -> JsonObject:
    return {
        "id": identity.id("score-"),
        "object": "list",
        "created": identity.created_s,
        "model": model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": usage_json(usage),
    }


def _places(field: str, count: int) -> list[str]:
    return [f"{field}[{index}]" for index in range(count)] if count > 1 else [field]


def _listed(value: object) -> list[str]:
    """A text, or texts. Raises ValueError."""
    if isinstance(value, str):
        return [checked_text(value, "it")]
    if not isinstance(value, list):
        raise ValueError("it must be a text or a list of texts")
    check_count(len(value), "it")
    return [checked_text(text, f"entry {index}") for index, text in enumerate(value)]
