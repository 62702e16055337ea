"""Parameters that are accepted and change no answer: labels, and hints that ask for nothing here.

A field of a request is marked with `WithoutEffect`. Its value is checked like that of any other field.

docs/reference/parameters.md lists them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

Flag = Annotated[bool | None, Field(strict=True)]
Verbosity = Literal["low", "medium", "high"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Marks a field whose value changes no answer."""

    because: str


AS_TEMPLATED: Final = WithoutEffect("a model thinks as its chat template says")


def hints_of(request_type: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo, WithoutEffect]]:
    """The marked fields of a request, and of the objects in it, by their paths."""
    for name, field in request_type.model_fields.items():
        mark = next((each for each in field.metadata if isinstance(each, WithoutEffect)), None)
        if mark is not None:
            yield path + name, field, mark
        for part in _parts(field.annotation):
            if mark is None and isinstance(part, type) and issubclass(part, BaseModel):
                yield from hints_of(part, f"{path}{name}.")


def values_of(annotation: Any) -> str:
    """The values that a field takes, for the documentation."""
    literals = [f"`{value}`" for part in _parts(annotation) for value in _literals(part)]
    kinds = [_KINDS[part] for part in _parts(annotation) if part in _KINDS]
    return ", ".join(literals or kinds or ["an object"])


def _parts(annotation: Any) -> Iterator[Any]:
    """The members of a union, without None."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        members = get_args(annotation)
        for part in members[:1] if get_origin(annotation) is Annotated else members:
            yield from _parts(part)
    elif annotation is not NoneType:
        yield annotation


def _literals(part: Any) -> tuple[Any, ...]:
    return get_args(part) if get_origin(part) is Literal else ()


_KINDS: Mapping[Any, str] = {bool: "`true`, `false`", str: "a string", int: "an integer"}
