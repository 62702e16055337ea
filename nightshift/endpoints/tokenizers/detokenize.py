"""POST /detokenize, in vLLM's shape."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from nightshift.endpoints.answer_objects import DetokenizedText
from nightshift.endpoints.answers import AnswerSize
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.requests import ModelRequest, TokenId
from nightshift.endpoints.results import Values
from nightshift.endpoints.tokenizers.endpoint import TokenizerEndpoint, TokenizerRequest, Tokens
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject


class DetokenizeRequest(TokenizerRequest):
    """POST /v1/detokenize."""

    tokens: Annotated[list[TokenId], Field(fail_fast=True)]

    @property
    def text_chars(self) -> int:
        return len(self.tokens)

    def answered(self, tokens: Tokens) -> JsonObject:
        return {"prompt": tokens.text(self.tokens)}


class Detokenize(TokenizerEndpoint):
    route = "/v1/detokenize"
    aliases: Mapping[str, JsonObject] = {"/detokenize": {}}
    name = "detokenize"
    operation = "create_detokenize"
    summary = "Turn token ids into their text"
    request_type = DetokenizeRequest
    answer_type = DetokenizedText
    fields = ("tokens",)
    columns: Mapping[str, ColumnType] = {"text": ColumnType.TEXT}

    def values(self, body: JsonObject) -> Values:
        return {"text": body.get("prompt")}

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        assert isinstance(request, DetokenizeRequest), "parsed by this endpoint"
        if model.output_sizes is None:
            return None
        return AnswerSize(model.output_sizes.token, {"tokens": len(request.tokens)})
