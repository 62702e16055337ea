"""The interface of endpoints.

A new endpoint is a module with a subclass of `Endpoint`, registered in `nightshift/endpoints/__init__.py`.
Workers run its requests by the kind of their model (`workers/serving`).
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from pydantic import BaseModel, ValidationError

from nightshift.endpoints.answers import ANSWER_ID_CHARS, AnswerSize
from nightshift.endpoints.requests import ModelRequest, invalid_request
from nightshift.endpoints.results import Identity, Origin, Result, Values
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JsonObject, Usage


class ColumnType(StrEnum):
    TEXT = "text"
    FLOAT = "float"  # float32
    FLOATS = "floats"  # float32
    COUNT = "count"  # int32


class Endpoint(ABC):
    """A stateless route to a model."""

    route: str  # such as `/v1/chat/completions`
    aliases: Mapping[str, JsonObject] = {}
    """Routes that it has at other servers, for online requests, and values of fields not given there."""
    name: str  # the command line's word, such as `chat`
    operation: str  # of the OpenAPI document, such as `create_chat_completion`
    summary: str  # likewise
    model_kinds: Collection[ModelKind]  # that serve it
    request_type: type[ModelRequest]
    answer_type: type[BaseModel] | None = None  # of the body, for the OpenAPI document
    columns: Mapping[str, ColumnType]  # of its answers in a part file
    effort_path: Sequence[str] = ()  # of the field that says how much a model is to think; (): it has none

    def __init__(self) -> None:
        """Raises TypeError for an endpoint without one of these attributes."""
        names = {name for kind in type(self).__mro__ for name in inspect.get_annotations(kind)}
        if lacking := sorted(name for name in names if not hasattr(self, name)):
            raise TypeError(f"{type(self).__name__} has no attribute {', '.join(lacking)}")

    def vector_size(self, template: JsonObject | None, dimensions: int) -> int | None:
        """The size of the vectors of a job's rows, if all have one; `dimensions`: the model's."""
        return dimensions

    @abstractmethod
    def values(self, body: JsonObject) -> Values:
        """An answer's `columns`, from its body; None for missing values."""

    def body(self, origin: Origin, values: Values, usage: Usage) -> JsonObject:
        """An answer's body, from its values. Endpoints whose values do not say it all leave bodies in their
        results, and are never asked.
        """
        raise NotImplementedError(f"results of {self} have bodies")

    def body_of(self, origin: Origin, result: Result) -> JsonObject:
        return self.body(origin, result.values, result.usage) if result.body is None else result.body

    def renamed(self, body_text: str, old: Identity, new: Identity) -> str:
        """An answer's body as text, with the id and the time of another row's answer."""
        body: JsonObject = json.loads(body_text)
        for field in ("created", "created_at"):
            if body.get(field) == old.created_s:
                body[field] = new.created_s
        id = body.get("id")
        if isinstance(id, str) and id == old.id(id[:-ANSWER_ID_CHARS]):
            body["id"] = new.id(id[:-ANSWER_ID_CHARS])
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        """An upper bound of an answer's size, which is refused where that is too large; None: not known."""
        return None

    @abstractmethod
    def row_template(self, model: str, placeholder: str) -> JsonObject:
        """The request for a row when only a column is named; `placeholder` stands for its value."""

    def with_effort(self, body: JsonObject, effort: str) -> JsonObject:
        """The body with an effort of thinking, where it says none itself."""
        said: JsonObject = {self.effort_path[-1]: effort}
        for name in reversed(self.effort_path[:-1]):
            said = {name: said}
        return _merged(said, body)

    @abstractmethod
    def check_line(self, body: JsonObject) -> int:
        """Quickly check a batch line's body; the rest is checked when the row runs.

        Returns how many inputs count towards the file's limit. Raises InvalidRequest.
        """

    def parse(self, body: JsonObject) -> ModelRequest:
        """The typed request. Raises InvalidRequest naming the first wrong field."""
        try:
            return self.request_type.model_validate(body)
        except ValidationError as error:
            raise invalid_request(error) from error

    def __str__(self) -> str:
        return self.route


def _merged(default: JsonObject, given: JsonObject) -> JsonObject:
    """`given`, with what it leaves out or has as null."""
    merged = dict(given)
    for name, value in default.items():
        said = given.get(name)
        if said is None:
            merged[name] = value
        elif isinstance(said, dict) and isinstance(value, dict):
            merged[name] = _merged(value, said)
    return merged


def check_sizes(endpoint: Endpoint, request: ModelRequest, model: Model, answer_bytes_max: int) -> None:
    """Refuses more token ids than the model's context has, and a request whose answer may be too large.

    Raises InvalidRequest naming the fields that make it so.
    """
    if model.kind not in endpoint.model_kinds:
        return
    is_source = model.kind is ModelKind.SEQ2SEQ  # read by its encoder, which has a limit of its own
    if model.context_length is not None and not is_source:
        request.check_context(model.context_length)
    size = endpoint.answer_size(request, model)
    if size is not None:
        size.check(answer_bytes_max)
