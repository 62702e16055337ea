"""POST /v1/moderations, in OpenAI's shape: a classifier's labels are its categories.

A category applies from a probability of `APPLIES_FROM` on. A label that says that nothing is wrong, such as
`safe` or `not toxic`, is a category that flags no text.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import field_validator

from nightshift.endpoints.answer_objects import ModerationObject
from nightshift.endpoints.encoders.classifications import Classifications, Ranking
from nightshift.endpoints.encoders.scoring import (
    ScoredText,
    ScoringRequest,
    check_count,
    checked_text,
    no_values,
)
from nightshift.endpoints.results import Identity, Values
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject, Usage

APPLIES_FROM: Final = 0.5
HARMLESS: Final = re.compile(
    r"(safe|ok|okay|neutral|normal|none|benign|clean|good|acceptable|allowed|other|(non|not|no)[-_ ].+)", re.I
)


class ModerationRequest(ScoringRequest):
    """POST /v1/moderations. `input` is a text, a list of texts, or the parts of one text."""

    input: Any

    @field_validator("input")
    @classmethod
    def _input(cls, value: object) -> object:
        _texts(value)
        return value

    @property
    def texts(self) -> Sequence[ScoredText]:
        return _texts(self.input)


class Moderations(Classifications):
    route = "/v1/moderations"
    name = "moderations"
    operation = "create_moderation"
    summary = "Say which of a classifier's labels apply to texts"
    request_type = ModerationRequest
    answer_type = ModerationObject
    model_kinds = (ModelKind.CLASSIFIER,)
    shows_labels = 3

    def count(self, texts: object) -> int:
        return len(_texts(texts))

    def values(self, body: JsonObject) -> Values:
        results = body.get("results") or []
        if len(results) != 1:
            return no_values(self.columns)
        return self.ranking_values([*results[0]["category_scores"].items()])

    def shape(self, identity: Identity, model: str, rankings: Sequence[Ranking], usage: Usage) -> JsonObject:
        return {"id": identity.id("modr-"), "model": model, "results": [*map(_moderated, rankings)]}


def _moderated(ranking: Ranking) -> JsonObject:
    applying = {label: score >= APPLIES_FROM for label, score in ranking}
    return {
        "flagged": any(applies and not HARMLESS.fullmatch(label) for label, applies in applying.items()),
        "categories": applying,
        "category_scores": dict(ranking),
        "category_applied_input_types": {label: ["text"] for label in applying},
    }


def _texts(value: object) -> list[ScoredText]:
    """A text, texts, or the parts of one, as in OpenAI's API. Raises ValueError."""
    if not isinstance(value, list):
        return [ScoredText(checked_text(value, "input"), None, "input")]
    check_count(len(value), "input")
    if any(isinstance(part, dict) for part in value):
        texts = [_part(part, f"input[{index}]") for index, part in enumerate(value)]
        return [ScoredText("\n".join(texts), None, "input")]
    places = [f"input[{index}]" for index in range(len(value))]
    return [
        ScoredText(checked_text(text, place), None, place) for text, place in zip(value, places, strict=True)
    ]


def _part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind != "text":
        raise ValueError(f"{place}.type is {kind!r}: a text classifier reads parts of type 'text' alone")
    return checked_text(part.get("text"), f"{place}.text")
