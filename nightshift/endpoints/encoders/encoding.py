"""The base of endpoints that an encoder serves: texts in, one vector for each."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from nightshift.endpoints.encoders.images import ImageInput
from nightshift.endpoints.endpoint import Endpoint
from nightshift.endpoints.requests import Count, ModelRequest, TokensKept
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.generation import Prompt, prompt_chars
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject, Usage

PromptName = Annotated[str, Field(min_length=1, max_length=64)]


class EncoderRequest(ModelRequest):
    """A request for vectors. Extensions have vLLM's names."""

    dimensions: Count | None = None
    truncate_prompt_tokens: TokensKept | None = None
    prompt_name: PromptName | None = None  # as in sentence-transformers
    input_type: PromptName | None = None  # as in Cohere's API

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt_name is not None and self.input_type is not None:
            raise ValueError("prompt_name and input_type both name a prompt: give one")
        return self

    @property
    def prompt_field(self) -> str | None:
        """The field that names a prompt, if one does."""
        return next((name for name in ("prompt_name", "input_type") if getattr(self, name) is not None), None)

    @property
    @abstractmethod
    def inputs(self) -> Sequence[Prompt | ImageInput]:
        """The texts, token ids or images, one by one, or a conversation."""

    @property
    def text_chars(self) -> int:
        return sum(prompt_chars(text) for text in self.inputs if not isinstance(text, ImageInput))


class EncoderEndpoint(Endpoint):
    """An endpoint that an encoder serves."""

    model_kinds: Collection[ModelKind] = (ModelKind.ENCODER,)
    input_field: str  # named by errors about the inputs

    def vector_size(self, template: JsonObject | None, dimensions: int) -> int | None:
        """Rows that are requests, or have a column for it, may each ask for another size."""
        if template is None:
            return None
        size = template.get("dimensions", dimensions)
        return dimensions if size is None else size if type(size) is int else None

    @abstractmethod
    def answer(self, request: ModelRequest, embeddings: Sequence[bytes], prompt_tokens: int) -> JsonObject:
        """The body of an answer. Each embedding is little-endian float32 bytes."""

    def result(
        self,
        request: ModelRequest,
        embeddings: Sequence[bytes],
        prompt_tokens: int,
        truncated_inputs: int | None = 0,
    ) -> Result:
        """The same as values. `truncated_inputs`: how many were cut, as was asked for; None: not known."""
        body = self.answer(request, embeddings, prompt_tokens)
        return Result(200, Usage(prompt_tokens), self.values(body), body)
