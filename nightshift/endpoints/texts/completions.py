"""POST /v1/completions."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from nightshift.endpoints.answer_objects import CompletionObject
from nightshift.endpoints.requests import are_token_ids, invalid_type, invalid_value, missing, too_long
from nightshift.endpoints.texts.choices import CHOICES_MAX, ChoicesEndpoint, ChoicesRequest, asked_for
from nightshift.endpoints.texts.generation import Choice
from nightshift.endpoints.texts.logprobs import Chosen, escaped, shown, token_text
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject

LOGPROBS_MAX: Final = 5
LANGUAGE_CHARS_MAX: Final = 32
DEFAULT_MAX_TOKENS: Final = 16  # as at OpenAI
_TOKENS: Final[JsonObject] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


Prompts = Annotated[
    Any,  # checked by `prompts_of`
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": CHOICES_MAX},
                _TOKENS,
                {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": CHOICES_MAX},
            ]
        }
    ),
]


Language = Annotated[str, Field(min_length=1, max_length=LANGUAGE_CHARS_MAX)]
"""The language as the model's tokenizer calls it, such as `fr_XX` or `fra_Latn`."""


def prompts_of(value: object) -> list[str | list[int]]:
    """A text, token ids, or a list of either. Raises InvalidRequest naming the first wrong one."""
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise invalid_type("prompt", "a string or an array", value)
    if not value or not isinstance(value[0], str | list):
        return [_tokens(value, "prompt")]
    if len(value) > CHOICES_MAX:
        raise invalid_value("prompt", f"at most {CHOICES_MAX} prompts, got {len(value)}")
    return [_prompt(prompt, f"prompt[{index}]") for index, prompt in enumerate(value)]


def _prompt(value: object, at: str) -> str | list[int]:
    if isinstance(value, str | list):
        return value if isinstance(value, str) else _tokens(value, at)
    raise invalid_type(at, "a string or an array", value)


def _tokens(ids: list[Any], at: str) -> list[int]:
    if not ids:
        raise invalid_value(at, "the prompt has no tokens")
    if not are_token_ids(ids):
        wrong = next(n for n, id in enumerate(ids) if type(id) is not int or id < 0)
        raise invalid_value(f"{at}[{wrong}]", "a token id must be an integer of at least 0")
    return ids


class CompletionRequest(ChoicesRequest):
    """POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, strict=True)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX, strict=True)] | None = None
    source_language: Language | None = None
    target_language: Language | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _none_wanted(cls, value: object) -> object:
        return None if value is False else value  # as chats spell it

    @property
    def logprobs_asked(self) -> int | None:
        return self.logprobs if self.logprobs is None else len(self.listed_token_ids) or self.logprobs

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, value: object) -> list[str | list[int]]:
        return prompts_of(value)

    @model_validator(mode="after")
    def _few_choices(self) -> Self:
        if self.num_choices > CHOICES_MAX:
            raise invalid_value(
                "n", f"{self.n} for each of {self.num_prompts} prompts are more than {CHOICES_MAX} choices"
            )
        return self

    @model_validator(mode="after")
    def _generates_or_reads(self) -> Self:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise invalid_value(
                "max_tokens", "0 asks for nothing without 'echo' or 'prompt_logprobs'; it must be at least 1"
            )
        return self

    @property
    def prompt_logprobs_asked(self) -> int | None:
        """The alternatives that the echo and `prompt_logprobs` ask for, whichever are more."""
        of_echo = self.logprobs if self.echo else None
        counts = (self.prompt_logprobs, of_echo)
        return max((count for count in counts if count is not None), default=None)

    @property
    def is_read_only(self) -> bool:
        return self.max_tokens == 0

    def echoed(self, prompt: int) -> str | Sequence[int]:
        return self.prompts_given[prompt] if self.echo else ""

    @property
    def logprobs_field(self) -> str:
        return super().logprobs_field if self.listed_token_ids else "logprobs"

    @property
    def choices_asked(self) -> dict[str, int]:
        return {**super().choices_asked, "prompt": self.num_prompts}

    @property
    def output_tokens_max(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def languages(self) -> Mapping[str, str]:
        given = {"source_language": self.source_language, "target_language": self.target_language}
        return {field: language for field, language in given.items() if language is not None}

    @property
    def prompts_given(self) -> list[str | list[int]]:
        return [*self.prompt]

    def check_context(self, tokens_max: int) -> None:
        for number, prompt in enumerate(self.prompt):
            if isinstance(prompt, list) and len(prompt) > tokens_max:
                place = "prompt" if self.num_prompts == 1 else f"prompt[{number}]"
                raise too_long(tokens_max, f"'{place}' has {len(prompt)} tokens", place)

    @property
    def num_prompts(self) -> int:
        return len(self.prompt)


class Completions(ChoicesEndpoint):
    route = "/v1/completions"
    model_kinds: Collection[ModelKind] = (ModelKind.DECODER, ModelKind.SEQ2SEQ)
    name = "completions"
    operation = "create_completion"
    summary = "Continue a text"
    request_type = CompletionRequest
    answer_type = CompletionObject
    prompt_field = "prompt"
    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"
    has_logprobs_in_every_chunk = True  # clients read each chunk's first token

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "prompt": placeholder}

    def check_line(self, body: JsonObject) -> int:
        if body.get("prompt") is None:
            raise InvalidRequest("'prompt' is missing.", param="prompt", code="missing_required_parameter")
        return 0

    def choice_json(self, choice: Choice) -> JsonObject:
        return {"text": choice.text} | asked_for(choice, "prompt_logprobs", "token_ids", "prompt_token_ids")

    def choice_text(self, choice: JsonObject) -> str:
        return str(choice["text"])

    def chunk_opening(self, *, may_call: bool) -> None:
        return None

    def chunk_delta(self, text: str) -> JsonObject:
        return {"text": text}

    def chunk_closing(self) -> JsonObject:
        return {"text": ""}

    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        """Four columns. The token itself is among the alternatives."""
        return {
            "tokens": [_text(token.chance.token) for token in chosen],
            "token_logprobs": [shown(token.chance.logprob) for token in chosen],
            "top_logprobs": [_alternatives(token) for token in chosen],
            "text_offset": [token.text_offset for token in chosen],
        }


def _alternatives(chosen: Chosen) -> JsonObject | None:
    if chosen.chance.logprob is None:
        return None
    alternatives: JsonObject = {_text(chosen.chance.token): None}  # it comes first, as in vLLM
    for chance in reversed([*chosen.top, chosen.chance]):  # of two with the same text, the likelier counts
        alternatives[_text(chance.token)] = shown(chance.logprob)
    return alternatives


def _text(token: bytes) -> str:
    text = token_text(token)
    return f"bytes:{escaped(token)}" if text is None else text
