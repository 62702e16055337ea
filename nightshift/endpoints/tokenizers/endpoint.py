"""The base of endpoints that a model's tokenizer serves: a worker answers without a step of its engine."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from nightshift.endpoints.endpoint import Endpoint
from nightshift.endpoints.requests import ModelRequest, missing
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.generation import Prompt
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject, Usage


class Tokens(Protocol):
    """A model's tokenizer, as these endpoints need it."""

    @property
    def context_length(self) -> int: ...

    def token_ids(self, prompt: Prompt, *, add_special_tokens: bool) -> list[int]:
        """Raises InvalidRequest."""

    def name(self, token_id: int) -> str:
        """A token as the vocabulary has it."""

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included. Raises InvalidRequest for an unknown one."""


class TokenizerRequest(ModelRequest):
    @abstractmethod
    def answered(self, tokens: Tokens) -> JsonObject:
        """The body of its answer. Raises InvalidRequest."""


class TokenizerEndpoint(Endpoint):
    """An endpoint that a model's tokenizer serves."""

    model_kinds: Collection[ModelKind] = (
        *(ModelKind.DECODER, ModelKind.SEQ2SEQ, ModelKind.ENCODER, ModelKind.CLASSIFIER),
    )
    fields: Sequence[str]  # a request has one of them

    def result(self, request: TokenizerRequest, tokens: Tokens) -> Result:
        """The answer. Raises InvalidRequest."""
        body = request.answered(tokens)
        return Result(200, Usage(), self.values(body), body)

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, self.fields[0]: placeholder}

    def check_line(self, body: JsonObject) -> int:
        if all(body.get(field) is None for field in self.fields):
            raise missing(self.fields[0])
        return 0
