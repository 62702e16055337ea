"""What bodies of our own have in common: unknown fields are errors."""

from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator

FIELDS_MAX: Final = 64


class OwnBody(BaseModel):
    """An object of our own, whose unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _few_fields(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, dict) and len(data) > FIELDS_MAX:
            raise ValueError(f"at most {FIELDS_MAX} fields, got {len(data)}")
        return handler(data)
