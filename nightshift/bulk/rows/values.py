"""Values of records: their texts, their ids, and what a result keeps of them, whatever the format. Pure.

A value is one of JSON's, or at the top of a record a `Decimal`, or anywhere in it an `Unusable` or a
`WrittenNumber`. The table in
docs/values.md says which type becomes which text.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from nightshift.errors import InvalidRequest

EXACT_MAX: Final = 2**53  # from here on a double may stand for its neighbours, too
_WHOLE: Final = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")  # as pandas writes a whole double into CSV


@dataclass(frozen=True, slots=True)
class Unusable:
    """A value without a text."""

    column: str
    reason: str  # the end of a sentence about the column
    kept: Any = None  # the JSON that a result keeps in its place

    def error(self) -> InvalidRequest:
        return InvalidRequest(
            f"The column '{self.column}' {self.reason}.", param=self.column, code="invalid_value"
        )


class WrittenNumber(float):
    """A number of JSON with the text that it was written as, which is not that of its double: `1.10`, or one
    of more digits than a double has.
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "WrittenNumber":
        value = super().__new__(cls, text)
        value.text = text
        return value

    def __repr__(self) -> str:
        return self.text


def number(text: str) -> float:
    """The value of a JSON number with a fraction or an exponent, which keeps its text where a double has
    another.
    """
    value = float(text)
    return value if repr(value) == text or math.isinf(value) else WrittenNumber(text)


def integer(text: str) -> float:
    """The value of a JSON number without either. `-0` keeps its text."""
    return WrittenNumber(text) if text == "-0" else int(text)


def as_text(value: Any, column: str) -> str:
    """A value's text; empty for null. Raises InvalidRequest for one without a text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, Unusable):
        raise value.error()
    try:
        return json_text(value, default=_refused)
    except ValueError as error:
        raise Unusable(column, "has a number that is too large for a double").error() from error


def json_text(
    value: Any, separators: tuple[str, str] = (", ", ": "), *, default: Callable[[Any], Any]
) -> str:
    """A value as JSON, its numbers as they were written. Raises ValueError for an infinite one.

    `default`: what stands for a value that JSON lacks.
    """
    if not _has_written(value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators, default=default)
    between, after_name = separators
    if isinstance(value, WrittenNumber):
        return value.text

    def text_of(part: Any) -> str:
        return json_text(part, separators, default=default)

    if isinstance(value, list):
        return f"[{between.join(map(text_of, value))}]"
    fields = (
        f"{json.dumps(name, ensure_ascii=False)}{after_name}{text_of(part)}" for name, part in value.items()
    )
    return f"{{{between.join(fields)}}}"


def _has_written(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_written, value.values()))
    return any(map(_has_written, value)) if isinstance(value, list) else isinstance(value, WrittenNumber)


def as_json(value: Any) -> Any:
    """A value as a request has it: a decimal is a number. Raises InvalidRequest for an `Unusable`."""
    if isinstance(value, Decimal):
        return int(value) if _is_whole(value) else float(value)
    if isinstance(value, Unusable):
        raise value.error()
    return value


def as_kept(value: Any) -> Any:
    """The JSON that a result keeps in place of a `Decimal` or an `Unusable`."""
    return decimal_text(value) if isinstance(value, Decimal) else value.kept


def as_id(value: Any, *, is_typed: bool) -> str | None:
    """The text of a text or a whole number; None for any other value. `is_typed`: a text is no number."""
    if isinstance(value, str):
        whole = None if is_typed else _WHOLE.fullmatch(value)
        return value if whole is None else _exact(int(whole[1]))
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return str(int(value)) if _is_whole(value) else decimal_text(value)
    return _exact(int(value)) if isinstance(value, float) and value.is_integer() else None


def is_rounded(value: Any, *, is_typed: bool) -> bool:
    """Whether a value is a whole number that a double may have rounded."""
    if isinstance(value, str) and not is_typed:
        whole = _WHOLE.fullmatch(value)
        return whole is not None and _exact(int(whole[1])) is None
    return isinstance(value, float) and value.is_integer() and _exact(int(value)) is None


def kind_of(value: Any) -> str:
    """A value's kind, with its article, for a message."""
    if isinstance(value, str):
        return "a text with NUL" if "\0" in value else f"a text of {len(value)} characters"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int):
        return f"a number of {len(str(value))} digits"
    return "null" if value is None else "a number that is not whole"


def check_usable(values: Iterable[Any]) -> None:
    """Raises InvalidRequest for an `Unusable` among values or in them."""
    for value in values:
        if isinstance(value, str):
            continue
        if isinstance(value, dict):
            check_usable(value.values())
        elif isinstance(value, list):
            check_usable(value)
        elif isinstance(value, Unusable):
            raise value.error()


def decimal_text(value: Decimal) -> str:
    """All digits, without an exponent."""
    return format(value, "f")


def _exact(number: int) -> str | None:
    return str(number) if abs(number) < EXACT_MAX else None


def _is_whole(value: Decimal) -> bool:
    return value == value.to_integral_value()


def _refused(value: Unusable) -> Any:
    raise value.error()
