"""POST /v1/embeddings."""

import base64
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import field_validator

from nightshift.endpoints.answer_objects import EmbeddingList
from nightshift.endpoints.answers import ANSWER_HEAD_BYTES, NUMBER_BYTES, AnswerSize
from nightshift.endpoints.encoders.encoding import EncoderEndpoint, EncoderRequest
from nightshift.endpoints.encoders.images import ImageInput, check_count, image_of, is_image
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.requests import MAY_BE_CUT, ModelRequest, are_token_ids, too_long
from nightshift.endpoints.results import TRUNCATED, Origin, Result, Values, count_bytes, count_of
from nightshift.endpoints.texts.conversations import ConversationFields
from nightshift.endpoints.texts.generation import Prompt
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.json_text import json_bytes

INPUTS_MAX: Final = 2048  # per request
VECTOR_BYTES: Final = 128  # of an answer, a vector's names and number
BASE64_BYTES: Final = 6  # of a number: 4 bytes in 5.3 characters


class EmbeddingRequest(ConversationFields, EncoderRequest):
    """POST /v1/embeddings. `inputs` are the texts, token id lists or images, one by one."""

    input: Any = None
    encoding_format: Literal["float", "base64"] = "float"

    @field_validator("encoding_format", mode="before")
    @classmethod
    def _default_format(cls, value: object) -> object:
        return "float" if value is None else value

    @field_validator("input")
    @classmethod
    def _input(cls, value: object) -> object:
        return None if value is None else _inputs(value)

    @property
    def inputs(self) -> list[Prompt | ImageInput]:
        conversation, inputs = self.conversation(), self.input
        return inputs if conversation is None else [conversation]

    def check_context(self, tokens_max: int) -> None:
        may_be_cut = self.truncate_prompt_tokens is not None
        for number, given in enumerate(() if may_be_cut else self.inputs):
            if isinstance(given, list) and len(given) > tokens_max:
                raise too_long(tokens_max, f"input {number} has {len(given)} tokens", "input", MAY_BE_CUT)


class Embeddings(EncoderEndpoint):
    route = "/v1/embeddings"
    name = "embeddings"
    operation = "create_embeddings"
    summary = "Turn texts or images into vectors"
    request_type = EmbeddingRequest
    answer_type = EmbeddingList
    input_field = "input"
    model_kinds = (ModelKind.ENCODER, ModelKind.IMAGE_ENCODER)
    columns: Mapping[str, ColumnType] = {"embedding": ColumnType.FLOATS, TRUNCATED: ColumnType.COUNT}

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "input": placeholder}

    def check_line(self, body: JsonObject) -> int:
        if body.get("messages") is not None and body.get("input") is None:
            return 1
        try:
            return len(_inputs(body.get("input")))
        except ValueError as error:
            raise InvalidRequest(f"{error}.", param="input", code="missing_required_parameter") from error

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        assert isinstance(request, EmbeddingRequest), "parsed by this endpoint"
        dimensions, count = request.dimensions or model.dimensions, len(request.inputs)
        if dimensions is None:
            return None
        is_float = request.encoding_format == "float"
        return AnswerSize(
            NUMBER_BYTES if is_float else BASE64_BYTES,
            {"input": count, "dimensions": dimensions},
            ANSWER_HEAD_BYTES + json_bytes(request.model) + count * VECTOR_BYTES,
            {"encoding_format": request.encoding_format},
        )

    def answer(
        self,
        request: ModelRequest,
        embeddings: Sequence[bytes],
        prompt_tokens: int,
        truncated_inputs: int | None = None,
    ) -> JsonObject:
        assert isinstance(request, EmbeddingRequest), "parsed by this endpoint"
        vectors = [_encoded(vector, request.encoding_format) for vector in embeddings]
        return _body(request.model, vectors, prompt_tokens, truncated_inputs)

    def result(
        self,
        request: ModelRequest,
        embeddings: Sequence[bytes],
        prompt_tokens: int,
        truncated_inputs: int | None = 0,
    ) -> Result:
        """A row with one input has its vector as a value; others have the body alone."""
        assert isinstance(request, EmbeddingRequest), "parsed by this endpoint"
        counted = None if request.truncate_prompt_tokens is None else truncated_inputs
        values = {
            "embedding": embeddings[0] if len(embeddings) == 1 else None,
            TRUNCATED: None if counted is None else count_bytes(counted),
        }
        says_all = len(embeddings) == 1 and request.encoding_format == "float"
        body = None if says_all else self.answer(request, embeddings, prompt_tokens, counted)
        return Result(200, Usage(prompt_tokens), values, body)

    def values(self, body: JsonObject) -> Values:
        data = body.get("data") or []
        counted = (body.get("usage") or {}).get(TRUNCATED)
        return {
            "embedding": vector_bytes(data[0]["embedding"]) if len(data) == 1 else None,
            TRUNCATED: None if counted is None else count_bytes(counted),
        }

    def body(self, origin: Origin, values: Values, usage: Usage) -> JsonObject:
        vector, counted = values["embedding"], values.get(TRUNCATED)
        assert isinstance(vector, bytes), "a row with one input has its vector"
        truncated_inputs = count_of(counted) if isinstance(counted, bytes) else None
        return _body(origin.model, [_encoded(vector, "float")], usage.prompt_tokens, truncated_inputs)


def _body(
    model: str,
    embeddings: Sequence[str | list[float]],
    prompt_tokens: int,
    truncated_inputs: int | None,
) -> JsonObject:
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": embedding}
            for index, embedding in enumerate(embeddings)
        ],
        "usage": usage if truncated_inputs is None else usage | {TRUNCATED: truncated_inputs},
    }


def _inputs(value: object) -> list[str | list[int] | ImageInput]:
    """An embedding input's five shapes as a list. Raises ValueError."""
    if (
        isinstance(value, str)
        or is_image(value)
        or (isinstance(value, list) and value and _is_token(value[0]))
    ):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError(
            "input must be a text, an image, a list of tokens, or a list of texts, images or token lists"
        )
    if len(value) > INPUTS_MAX:
        raise ValueError(f"at most {INPUTS_MAX} inputs in one request, got {len(value)}")
    return _checked(value)


def _checked(items: list[Any]) -> list[str | list[int] | ImageInput]:
    """Raises ValueError."""
    inputs: list[str | list[int] | ImageInput] = []
    for position, item in enumerate(items):
        if is_image(item):
            inputs.append(image_of(item, f"input[{position}]"))
        elif (isinstance(item, str) and item) or (isinstance(item, list) and item and are_token_ids(item)):
            inputs.append(item)
        else:
            raise ValueError(f"input[{position}] must be a text, an image or a list of tokens, and not empty")
    check_count([item for item in inputs if isinstance(item, ImageInput)])
    return inputs


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _encoded(vector: bytes, encoding_format: str) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(vector).decode()
    return list(memoryview(vector).cast("f"))


def vector_bytes(vector: str | list[float]) -> bytes:
    """The float32 numbers of a vector in an answer."""
    return base64.b64decode(vector) if isinstance(vector, str) else array("f", vector).tobytes()
