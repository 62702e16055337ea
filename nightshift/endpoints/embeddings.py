"""POST /v1/embeddings."""

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import field_validator

from nightshift.endpoints.answer_objects import EmbeddingList
from nightshift.endpoints.encoding import EncoderEndpoint, EncoderRequest
from nightshift.endpoints.endpoint import Cells, ColumnType
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

INPUTS_MAX: Final = 2048  # per request


class EmbeddingRequest(EncoderRequest):
    """POST /v1/embeddings. `inputs` are the texts, or token id lists, one by one."""

    input: Any
    encoding_format: Literal["float", "base64"] = "float"

    @field_validator("encoding_format", mode="before")
    @classmethod
    def _default_format(cls, value: object) -> object:
        return "float" if value is None else value

    @field_validator("input")
    @classmethod
    def _input(cls, value: object) -> object:
        _inputs(value)
        return value

    @property
    def inputs(self) -> list[str | list[int]]:
        return _inputs(self.input)


class Embeddings(EncoderEndpoint):
    route = "/v1/embeddings"
    name = "embeddings"
    operation = "create_embeddings"
    summary = "Turn texts into vectors"
    request_type = EmbeddingRequest
    answer_type = EmbeddingList
    input_field = "input"
    columns: Mapping[str, ColumnType] = {"embedding": ColumnType.FLOATS}

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "input": placeholder}

    def check_line(self, body: JsonObject) -> int:
        try:
            return len(_inputs(body.get("input")))
        except ValueError as error:
            raise InvalidRequest(f"{error}.", param="input", code="missing_required_parameter") from error

    def answer(self, request: ModelRequest, embeddings: Sequence[bytes], prompt_tokens: int) -> JsonObject:
        assert isinstance(request, EmbeddingRequest), "parsed by this endpoint"
        return {
            "object": "list",
            "model": request.model,
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _encoded(vector, request.encoding_format),
                }
                for index, vector in enumerate(embeddings)
            ],
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }

    def cells(self, body: JsonObject) -> Cells:
        """The vector of a row with one input; other rows have the body."""
        data = body.get("data") or []
        if len(data) != 1:
            return Cells({"embedding": None}, is_complete=False)
        vector = data[0]["embedding"]
        return Cells({"embedding": _decoded(vector)}, is_complete=True)


def _inputs(value: object) -> list[str | list[int]]:
    """An embedding input's four shapes as a list. Raises ValueError."""
    if isinstance(value, str) or (isinstance(value, list) and value and _is_token(value[0])):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("input must be a text, a list of texts, a list of tokens or a list of token lists")
    if len(value) > INPUTS_MAX:
        raise ValueError(f"at most {INPUTS_MAX} inputs in one request, got {len(value)}")
    for position, item in enumerate(value):
        if isinstance(item, str) and item:
            continue
        if isinstance(item, list) and item and all(_is_token(token) for token in item):
            continue
        raise ValueError(f"input[{position}] must be a text or a list of tokens, and not empty")
    return value


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _encoded(vector: bytes, encoding_format: str) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(vector).decode()
    return list(memoryview(vector).cast("f"))


def _decoded(vector: str | list[float]) -> list[float]:
    if not isinstance(vector, str):
        return vector
    raw = base64.b64decode(vector)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))
