"""What the endpoints that a classifier serves have in common: texts or pairs in, scores for each out."""

import json
from abc import abstractmethod
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from nightshift.endpoints.answer_sizes import ANSWER_HEAD_BYTES, AnswerSize
from nightshift.endpoints.endpoint import Endpoint
from nightshift.endpoints.requests import ModelRequest, TokensKept, null_means
from nightshift.endpoints.results import Identity, Result
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JsonObject
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
    """What a model says of a request's texts."""

    identity: Identity
    labels: Sequence[str]
    scores: Sequence[bytes]  # of each text: float32, one for each label
    prompt_tokens: int


class ScoringRequest(ModelRequest):
    """A request for scores. The extensions have vLLM's names."""

    truncate_prompt_tokens: TokensKept | None = None
    use_activation: Annotated[bool, null_means(True)] = True

    @property
    @abstractmethod
    def texts(self) -> Sequence[ScoredText]:
        """The texts or pairs, one by one."""

    @property
    def text_chars(self) -> int:
        return sum(len(each.text) + len(each.pair or "") for each in self.texts)


class RankingRequest(ScoringRequest):
    """A request for the relevance of texts to another."""

    instruction: Annotated[str, Field(min_length=1)] | None = None
    """What makes a document relevant, for models with a place for it in their prompt."""


class ScoringEndpoint(Endpoint):
    """An endpoint that a classifier serves."""

    model_kinds: Collection[ModelKind] = (ModelKind.CLASSIFIER,)

    @property
    @abstractmethod
    def ranks(self) -> bool:
        """Whether it asks for one score: how much a text has to do with another."""

    @abstractmethod
    def result(self, request: ModelRequest, scored: Scored) -> Result:
        """The answer."""

    @property
    @abstractmethod
    def texts_field(self) -> str:
        """The field with the texts to be scored."""

    @abstractmethod
    def count(self, texts: object) -> int:
        """How many texts that field has. Raises ValueError."""

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
    """A short body must not ask for much: a text that is read with each of others counts each time.

    Raises ValueError.
    """
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


def usage_json(prompt_tokens: int) -> JsonObject:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


def floats(scores: bytes) -> list[float]:
    return list(memoryview(scores).cast("f"))


def packed(scores: Sequence[float]) -> bytes:
    return array("f", scores).tobytes()


def json_text(value: Sequence[str] | Sequence[int]) -> str:
    """A list in a text column."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def no_values(columns: Mapping[str, object]) -> dict[str, None]:
    return dict.fromkeys(columns)
