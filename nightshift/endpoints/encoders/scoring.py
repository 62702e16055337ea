"""The base of endpoints that a classifier serves: texts or pairs in, scores for each out."""

import json
from abc import abstractmethod
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from nightshift.endpoints.answers import ANSWER_HEAD_BYTES, AnswerSize
from nightshift.endpoints.endpoint import Endpoint
from nightshift.endpoints.requests import ModelRequest, TokensKept, null_means
from nightshift.endpoints.results import Identity, Result
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.json_text import json_bytes

TEXTS_MAX: Final = 2048  # or pairs, per request
ENTRY_BYTES: Final = 128  # of an answer, a text's names, number and score
REPEATED_CHARS_MAX: Final = 4 * 1024 * 1024  # of a text that is read once for each of many others


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text to be scored, two together, or an image."""

    text: str
    pair: str | None
    place: str  # in its request, for errors: of the text that may be cut
    first_place: str | None = None  # of the text before it, of two
    is_image: bool = False  # `text` is a reference to one


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a model for a request's texts."""

    identity: Identity
    labels: Sequence[str]
    scores: Sequence[bytes]  # of each text: float32, one for each label
    prompt_tokens: int

    @property
    def first_scores(self) -> list[float]:
        """The only score of each text, of a model that ranks."""
        return [floats(scores)[0] for scores in self.scores]


class ScoringRequest(ModelRequest):
    """A request for scores. The extensions have vLLM's names."""

    truncate_prompt_tokens: TokensKept | None = None
    use_activation: Annotated[bool, null_means(True)] = True

    @property
    @abstractmethod
    def texts(self) -> Sequence[ScoredText]:
        """The texts or pairs, one by one."""

    @property
    def labels_max(self) -> int | None:
        """The most labels of a text that are shown, best first; None: all, in the model's order."""
        return None

    @property
    def text_chars(self) -> int:
        return sum(len(text.text) + len(text.pair or "") for text in self.texts)


class RankingRequest(ScoringRequest):
    """A request for the relevance of texts to another."""

    instruction: Annotated[str, Field(min_length=1)] | None = None
    """The instruction by which documents are relevant, for models with a place for it in their prompt."""

    max_tokens_per_doc: Annotated[int, Field(ge=0, strict=True)] | None = None
    """Tokens to which longer documents are cut; 0: not at all. The name is Cohere's."""


class ScoringEndpoint(Endpoint):
    """An endpoint that a classifier serves."""

    model_kinds: Collection[ModelKind] = (ModelKind.CLASSIFIER,)
    ranks: bool  # it asks for one score: how much a text has to do with another
    texts_field: str  # the field with the texts to be scored

    @abstractmethod
    def result(self, request: ModelRequest, scored: Scored) -> Result:
        """The answer."""

    @abstractmethod
    def count(self, texts: object) -> int:
        """The number of texts that the field has. Raises ValueError."""

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        """One score for each text."""
        assert isinstance(request, ScoringRequest), "parsed by this endpoint"
        head_bytes = ANSWER_HEAD_BYTES + json_bytes(request.model)
        return AnswerSize(ENTRY_BYTES, {self.texts_field: len(request.texts)}, head_bytes)

    def check_line(self, body: JsonObject) -> int:
        field = self.texts_field
        try:
            return self.count(body.get(field))
        except ValueError as error:
            message = f"Invalid '{field}': {error}."
            raise InvalidRequest(message, param=field, code="missing_required_parameter") from error


def check_count(count: int, field: str) -> None:
    """Raises ValueError for none or too many."""
    if not 1 <= count <= TEXTS_MAX:
        raise ValueError(f"{field} must have 1 to {TEXTS_MAX} entries, got {count}")


def check_repeated(text: str, count: int, field: str) -> None:
    """Raises ValueError where a text that is read with each of others makes a short body ask for much."""
    if len(text) * (count - 1) > REPEATED_CHARS_MAX:
        raise ValueError(
            f"{field} of {len(text)} characters is read once for each of {count} texts: that is more than "
            f"{REPEATED_CHARS_MAX} characters"
        )


def checked_text(value: object, place: str) -> str:
    """Raises ValueError for what is no text, or empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{place} must be a text, and not empty")
    return value


def usage_json(usage: Usage) -> JsonObject:
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}


def floats(scores: bytes) -> list[float]:
    return list(memoryview(scores).cast("f"))


def packed(scores: Sequence[float]) -> bytes:
    return array("f", scores).tobytes()


def json_text(value: Sequence[str] | Sequence[int]) -> str:
    """A list in a text column."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def no_values(columns: Mapping[str, object]) -> dict[str, None]:
    return dict.fromkeys(columns)
