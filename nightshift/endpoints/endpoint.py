"""What an endpoint decides.

A new endpoint is one module with a subclass of `Endpoint`, registered in `nightshift/endpoints/__init__.py`.
Python refuses to instantiate one that lacks a part, and names the part. Workers run its requests by its model
kind (`workers/serving`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError

from nightshift.endpoints.requests import ModelRequest, invalid_request
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject


class ColumnType(StrEnum):
    """Of a column in a Parquet part file."""

    TEXT = "text"
    FLOATS = "floats"  # a list of float32


@dataclass(frozen=True)
class Cells:
    """An answer as columns."""

    values: Mapping[str, object]
    say_all: bool  # the body adds nothing to them


class Endpoint(ABC):
    """One route by which a model is asked. Without state."""

    @property
    @abstractmethod
    def route(self) -> str:
        """Such as `/v1/chat/completions`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its word on the command line, such as `chat`."""

    @property
    @abstractmethod
    def operation(self) -> str:
        """Its name in the OpenAPI description, such as `create_chat_completion`."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """One line of the OpenAPI description."""

    @property
    @abstractmethod
    def model_kind(self) -> ModelKind:
        """The kind of model that serves it."""

    @property
    @abstractmethod
    def request_type(self) -> type[ModelRequest]:
        """What a request may say."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, ColumnType]:
        """The columns of a part file that hold its answers."""

    @abstractmethod
    def cells(self, body: JsonObject) -> Cells:
        """The answer with this body as values of `columns`; None where it has none."""

    @abstractmethod
    def row_template(self, model: str, placeholder: str) -> JsonObject:
        """The request made of each row when only a column is named: `placeholder` stands for its value."""

    @abstractmethod
    def check_line(self, body: JsonObject) -> int:
        """Check the body of a batch file's line, quickly: the rest is checked when the row runs.

        Returns how many embedding inputs it counts for. Raises InvalidRequest.
        """

    def parse(self, body: JsonObject) -> ModelRequest:
        """A request body as its type. Raises InvalidRequest naming the first field that is wrong."""
        try:
            return self.request_type.model_validate(body)
        except ValidationError as error:
            raise invalid_request(error) from error

    def __str__(self) -> str:
        return self.route
