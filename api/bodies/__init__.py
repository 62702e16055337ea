"""The shapes of requests and answers, with what all of them share."""

from datetime import datetime
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from api.responses.times import seconds
from nightshift.endpoints.requests import invalid_request
from nightshift.jobs import JsonObject

FIELDS_MAX: Final = 64

M = TypeVar("M", bound=BaseModel)

EpochTime = Annotated[int, BeforeValidator(lambda at: seconds(at) if isinstance(at, datetime) else at)]
"""A time of a record, in seconds since the epoch."""


class OwnBody(BaseModel):
    """An object of our own, whose unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _few_fields(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, dict) and len(data) > FIELDS_MAX:
            raise ValueError(f"at most {FIELDS_MAX} fields, got {len(data)}")
        return handler(data)


class OpenAiBody(BaseModel):
    """An object of OpenAI's, whose unknown fields are ignored, as there."""

    model_config = ConfigDict(extra="ignore")


class Record(BaseModel):
    """An object of answers that is made of a domain value, from its attributes of the same names."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)

    @classmethod
    def shown(cls, value: object, **more: object) -> JsonObject:
        """The value as answers show it. `more`: fields that it does not have."""
        if not more:
            return cls.model_validate(value).model_dump(mode="json")
        names = {name: str(field.validation_alias or name) for name, field in cls.model_fields.items()}
        own = {name: getattr(value, attribute) for name, attribute in names.items() if name not in more}
        return cls.model_validate(own | more).model_dump(mode="json")


class ListEnvelope(BaseModel):
    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


def parsed(model: type[M], body: JsonObject) -> M:
    """The typed body. Raises InvalidRequest naming the first field that is wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error, model.model_fields) from error
