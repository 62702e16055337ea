"""POST /v1/score, in vLLM's shape."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from pydantic import (
    AliasChoices,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

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
from nightshift.endpoints.requests import ModelRequest, invalid_value
from nightshift.endpoints.results import Identity, Origin, Result, Values
from nightshift.jobs import JsonObject, Usage

FIRST_NAMES: Final = ("text_1", "queries", "data_1")
SECOND_NAMES: Final = ("text_2", "documents", "items", "data_2")


class ScoreRequest(RankingRequest):
    """POST /v1/score: a text with each of others, or as many with as many. vLLM has more names for both."""

    text_1: Any = Field(validation_alias=AliasChoices(*FIRST_NAMES))
    text_2: Any = Field(validation_alias=AliasChoices(*SECOND_NAMES))

    other_names: ClassVar[Collection[str]] = (*FIRST_NAMES, *SECOND_NAMES)
    _names: tuple[str, str] = PrivateAttr(default=("text_1", "text_2"))

    @model_validator(mode="wrap")
    @classmethod
    def _read_names(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict):
            return handler(data)
        names = _name_given(data, FIRST_NAMES), _name_given(data, SECOND_NAMES)
        request = handler(data)
        request._names = names
        return request

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
        first_name, second_name = self._names
        places, first_places = _places(second_name, len(second)), _places(first_name, len(first))
        if len(first) == 1:
            first, first_places = first * len(second), first_places * len(second)
        return [*map(ScoredText, first, second, places, first_places)]


class Score(ScoringEndpoint):
    route = "/v1/score"
    aliases: Mapping[str, JsonObject] = {"/score": {}}
    name = "score"
    operation = "create_score"
    summary = "Score pairs of texts"
    request_type = ScoreRequest
    answer_type = ScoreList
    ranks = True
    texts_field = "text_2"
    columns: Mapping[str, ColumnType] = {"score": ColumnType.FLOAT, "scores": ColumnType.FLOATS}

    def check_line(self, body: JsonObject) -> int:
        return super().check_line({self.texts_field: body.get(_name_given(body, SECOND_NAMES))})

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


def _name_given(body: JsonObject, names: Sequence[str]) -> str:
    """The name by which a body has a field. Raises InvalidRequest for two of them."""
    given = [name for name in names if body.get(name) is not None]
    if len(given) > 1:
        raise invalid_value(given[1], f"'{given[0]}' names the same texts: give one of them")
    return given[0] if given else names[0]


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
