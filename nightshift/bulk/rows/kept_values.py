"""The columns of an input row that its result keeps, as a JSON object. Pure."""

from typing import Any, Final

from nightshift.bulk.rows.templates import value_of
from nightshift.bulk.rows.values import as_kept, json_text
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.options import KEEP_ALL, KeepColumns

KEPT_CHARS_MAX: Final = 4 * 1024 * 1024  # per row: names may be parts of one another
NAME_CHARS_MAX: Final = 80  # of a name in a message
NOTHING: Final = "null"  # kept of a row that cannot be read
KEPT_FIELD: Final = "columns"  # of a retry's rows


def kept_text(record: JsonObject, names: KeepColumns) -> str:
    """The columns in the order of their names' list, null for one that the record lacks.

    Raises InvalidRequest if they are too large, or have a number that JSON lacks.
    """
    pieces: list[str] = []
    chars = 0
    for name in record if names == KEEP_ALL else names:
        pieces.append(f"{_json(name, name)}:{_json(_value(record, name), name)}")
        chars += len(pieces[-1])
        if chars > KEPT_CHARS_MAX:
            raise InvalidRequest(
                f"The columns kept of this row have more than {KEPT_CHARS_MAX} characters: keep fewer.",
                param="keep_columns",
                code="row_too_large",
            )
    return f"{{{','.join(pieces)}}}"


def _value(record: JsonObject, name: str) -> Any:
    try:
        return value_of(record, name)
    except KeyError:
        return None


def _json(value: Any, name: str) -> str:
    try:
        return json_text(value, (",", ":"), default=as_kept)
    except ValueError as error:
        raise InvalidRequest(
            f"The kept column '{name[:NAME_CHARS_MAX]}' has a number that is too large to be written again.",
            param="keep_columns",
            code="invalid_value",
        ) from error
