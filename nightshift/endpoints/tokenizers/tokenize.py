"""POST /tokenize, in vLLM's shape."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from nightshift.endpoints.answer_objects import TokenizedText
from nightshift.endpoints.answers import AnswerSize
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.parameters import Effort
from nightshift.endpoints.requests import ModelRequest, null_means
from nightshift.endpoints.results import Values, count_bytes
from nightshift.endpoints.structured.tools import tools_of
from nightshift.endpoints.texts.conversations import ConversationFields
from nightshift.endpoints.texts.generation import Prompt, prompt_chars
from nightshift.endpoints.tokenizers.endpoint import TokenizerEndpoint, TokenizerRequest, Tokens
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject

ID_BYTES: Final = 8  # of a token id as JSON, and a comma
BYTES_PER_CHAR: Final = 4  # a token has at least one
SLACK_TOKENS: Final = 4096  # of a chat template


class TokenizeRequest(ConversationFields, TokenizerRequest):
    """POST /v1/tokenize: a text, or a conversation in the model's chat template."""

    prompt: str | None = None
    tools: list[JsonObject] | None = None
    reasoning_effort: Effort | None = None
    return_token_strs: Annotated[bool, null_means(False)] = False

    other_field: ClassVar[str] = "prompt"
    begins_answer: ClassVar[bool] = True

    @property
    def text(self) -> Prompt:
        tools = None if self.messages is None else tools_of({"tools": self.tools})
        shown = tools.given if tools is not None else ()
        return self.conversation(shown, self.reasoning_effort) or self.prompt or ""

    @property
    def text_chars(self) -> int:
        return prompt_chars(self.text)

    def answered(self, tokens: Tokens) -> JsonObject:
        ids = tokens.token_ids(self.text, add_special_tokens=self.adds_special_tokens)
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
