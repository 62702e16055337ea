"""POST /tokenize, in vLLM's shape."""

from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import Field, PrivateAttr, model_validator

from nightshift.endpoints.answer_objects import TokenizedText
from nightshift.endpoints.answers import AnswerSize
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.parameters import Effort, Flag
from nightshift.endpoints.requests import (
    MESSAGES_MAX,
    ModelRequest,
    array_at_most,
    invalid_value,
    missing,
    null_means,
)
from nightshift.endpoints.results import Values, count_bytes
from nightshift.endpoints.structured.tools import tools_of
from nightshift.endpoints.texts.chat import ChatMessage, media_of
from nightshift.endpoints.texts.generation import Conversation, Ending, Prompt, ending_of, prompt_chars
from nightshift.endpoints.texts.reasoning import TemplateFields
from nightshift.endpoints.tokenizers.endpoint import TokenizerEndpoint, TokenizerRequest, Tokens
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject

ID_BYTES: Final = 8  # of a token id as JSON, and a comma
BYTES_PER_CHAR: Final = 4  # a token has at least one
SLACK_TOKENS: Final = 4096  # of a chat template


class TokenizeRequest(TemplateFields, TokenizerRequest):
    """POST /v1/tokenize: a text, or a conversation in the model's chat template."""

    prompt: str | None = None
    messages: (
        Annotated[
            list[ChatMessage], Field(min_length=1, fail_fast=True), array_at_most(MESSAGES_MAX, "messages")
        ]
        | None
    ) = None
    tools: list[JsonObject] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: Flag = None
    continue_final_message: Flag = None
    reasoning_effort: Effort | None = None
    return_token_strs: Annotated[bool, null_means(False)] = False

    _ending: Ending = PrivateAttr(default="answer")

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise missing("prompt")
        if self.prompt is not None and self.messages is not None:
            raise invalid_value("messages", "'prompt' is another text: give one of them")
        self._ending = ending_of(self.add_generation_prompt, self.continue_final_message)
        return self

    @property
    def text(self) -> Prompt:
        if self.messages is None:
            return self.prompt or ""
        tools = tools_of({"tools": self.tools})
        shown = tools.given if tools is not None else ()
        messages, arguments = [message.for_template for message in self.messages], self.chat_template_kwargs
        media = media_of(self.messages)
        return Conversation(messages, shown, self._ending, arguments or {}, self.reasoning_effort, media)

    @property
    def text_chars(self) -> int:
        return prompt_chars(self.text)

    def answered(self, tokens: Tokens) -> JsonObject:
        """Special tokens go around a text; a conversation has its own."""
        adds = self.messages is None if self.add_special_tokens is None else self.add_special_tokens
        ids = tokens.token_ids(self.text, add_special_tokens=adds)
        return {
            "count": len(ids),
            "max_model_len": tokens.context_length,
            "tokens": ids,
            "token_strs": [*map(tokens.name, ids)] if self.return_token_strs else None,
        }


class Tokenize(TokenizerEndpoint):
    route = "/v1/tokenize"
    aliases: Mapping[str, JsonObject] = {"/tokenize": {}}
    name = "tokenize"
    operation = "create_tokenize"
    summary = "Turn a text or a conversation into token ids"
    request_type = TokenizeRequest
    answer_type = TokenizedText
    fields = ("prompt", "messages")
    columns: Mapping[str, ColumnType] = {"count": ColumnType.COUNT, "tokens": ColumnType.TEXT}

    def values(self, body: JsonObject) -> Values:
        if "tokens" not in body:
            return dict.fromkeys(self.columns)
        ids = ",".join(map(str, body["tokens"]))
        return {"count": count_bytes(body["count"]), "tokens": f"[{ids}]"}

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        assert isinstance(request, TokenizeRequest), "parsed by this endpoint"
        if model.output_sizes is None:
            return None
        unit = ID_BYTES + (model.output_sizes.token + 3 if request.return_token_strs else 0)
        field = "prompt" if request.messages is None else "messages"
        return AnswerSize(unit, {field: BYTES_PER_CHAR * request.text_chars + SLACK_TOKENS})
