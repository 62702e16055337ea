"""Values of a table as JSON, by the rules of docs/inputs.md for files: a date is its ISO 8601 text, a decimal
its digits, bytes the UTF-8 text that they are. What has no text of its own is refused, never guessed.
"""

import json
import math
from datetime import date, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from nightshift.bulk.rows.requests import is_custom_id
from nightshift.bulk.rows.values import as_id, decimal_text
from nightshift.errors import InvalidRequest

NULLS: Final = frozenset({"NAType", "NaTType"})  # pandas' own, beside None
INTEGER_BOUND: Final = 10**640  # as docs/values.md has it for files
PLAIN: Final = frozenset("biufUSO")  # kinds of numpy's scalars and arrays that are Python values


class NoJson(Exception):
    """A value without a text. The message ends a sentence that begins with its place."""


def as_json_value(value: Any) -> Any:
    """The value as JSON has it. Raises NoJson."""
    try:
        return _as_json(value)
    except RecursionError as error:
        raise NoJson("is nested too deep, or has itself in it") from error


def _as_json(value: Any) -> Any:
    if value is None or type(value).__name__ in NULLS:
        return None
    if isinstance(value, int) and abs(value) >= INTEGER_BOUND:
        raise NoJson("is an integer of more than 640 digits: convert the column to text")
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoJson(f"is {value}: leave such rows out, or fill them (fillna, fill_nan)")
        return float(value)
    if isinstance(value, Decimal) and value.is_finite():
        return decimal_text(value)
    if isinstance(value, date | time):  # datetimes are dates; pandas' keep their nanoseconds
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return _text_of(bytes(value))
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {_name(key): _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    if getattr(getattr(value, "dtype", None), "kind", "?") in PLAIN:
        return _as_json(value.tolist())
    raise NoJson(f"is a {type(value).__name__}, which has no text: convert the column first")


def as_json_line(record: dict[str, Any]) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a character is valid only when escaped
        return json.dumps(record).encode() + b"\n"


def key_text(value: Any) -> str:
    """The id of a row with this key. Raises NoJson."""
    text = as_id(as_json_value(value), is_typed=True)
    if text is None or not is_custom_id(text):
        raise NoJson("is no key: a key is a whole number, or a text of 1 to 512 characters without NUL")
    return text


def refused(column: str, row: int, error: NoJson) -> InvalidRequest:
    """The error that names the column and the row, from 0."""
    return InvalidRequest(f"The column '{column}' of row {row} (from 0) {error}.", param=column)


def _text_of(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NoJson("has bytes that are no UTF-8 text: decode or encode the column first") from error
    if "\0" in text:
        raise NoJson("has bytes with NUL: decode or encode the column first")
    return text


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise NoJson(f"has a field named {key!r}, which is no text")
    return key
