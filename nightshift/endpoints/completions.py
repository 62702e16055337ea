"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, field_validator

from nightshift.endpoints.generation import Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.logprobs import Chosen, escaped, shown, token_text
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

LOGPROBS_MAX: Final = 5
DEFAULT_MAX_TOKENS: Final = 16  # as at OpenAI


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. One prompt a request: text, or token ids."""

    prompt: str | Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX, strict=True)] | None = None

    also_unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (),
    }

    @field_validator("logprobs", mode="before")
    @classmethod
    def _none_wanted(cls, value: object) -> object:
        return None if value is False else value  # as chats spell it

    @property
    def logprobs_asked(self) -> int | None:
        return self.logprobs

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: object) -> object:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            return value[0]
        if isinstance(value, list) and any(isinstance(item, str | list) for item in value):
            raise ValueError("several prompts in one request are not supported; send one request each")
        if value == []:
            raise ValueError("the prompt has no tokens")
        return value

    @property
    def output_tokens_max(self) -> int | None:
        return self.max_tokens or DEFAULT_MAX_TOKENS

    @property
    def prompt_given(self) -> str | list[int]:
        return self.prompt


class Completions(TextEndpoint):
    route = "/v1/completions"
    name = "completions"
    operation = "create_completion"
    summary = "Continue a text"
    request_type = CompletionRequest
    prompt_field = "prompt"
    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "prompt": placeholder}

    def check_line(self, body: JsonObject) -> int:
        if body.get("prompt") is None:
            raise InvalidRequest("'prompt' is missing.", param="prompt", code="missing_required_parameter")
        return 0

    def choice_json(self, choice: Choice) -> JsonObject:
        return {"text": choice.text}

    def choice_text(self, choice: JsonObject) -> str:
        return str(choice["text"])

    def chunk_opening(self) -> None:
        return None

    def chunk_delta(self, text: str) -> JsonObject:
        return {"text": text}

    def chunk_closing(self) -> JsonObject:
        return {"text": ""}

    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        """Four columns. The token itself is among the alternatives."""
        return {
            "tokens": [_text(each.chance.token) for each in chosen],
            "token_logprobs": [shown(each.chance.logprob) for each in chosen],
            "top_logprobs": [_alternatives(each) for each in chosen],
            "text_offset": [each.text_offset for each in chosen],
        }


def _alternatives(chosen: Chosen) -> JsonObject:
    alternatives: JsonObject = {}
    for chance in [*chosen.top, chosen.chance]:  # of two with the same text, the likelier counts
        alternatives.setdefault(_text(chance.token), shown(chance.logprob))
    return alternatives


def _text(token: bytes) -> str:
    text = token_text(token)
    return f"bytes:{escaped(token)}" if text is None else text
