"""Checks the names of columns of an input."""

from collections import Counter
from typing import Final

from nightshift.errors import InvalidRequest
from nightshift.jobs.options import KEEP_ALL, KEPT_COLUMNS_MAX, KEPT_NAMES_CHARS_MAX

COLUMN_CHARS_MAX: Final = 255


def check_columns(param: str, value: object) -> object:
    """`all`, a list of columns, or None, as it is. Raises InvalidRequest naming `param` or an entry of it."""
    if value is None or value == KEEP_ALL:
        return value
    if not isinstance(value, list) or not 0 < len(value) <= KEPT_COLUMNS_MAX:
        raise _wrong(param, f"Give 'all', or a list of 1 to {KEPT_COLUMNS_MAX} names of columns.")
    for number, name in enumerate(value):
        if not is_column_name(name):
            message = f"a column's name is a text of 1 to {COLUMN_CHARS_MAX} characters of Unicode, not NUL."
            raise _wrong(f"{param}[{number}]", message)
    if sum(map(len, value)) > KEPT_NAMES_CHARS_MAX:
        raise _wrong(param, f"its names have more than {KEPT_NAMES_CHARS_MAX} characters together.")
    if twice := [name for name, count in Counter(value).items() if count > 1]:
        raise _wrong(param, f"{twice[0]!r} is named twice.")
    return value


def is_column_name(value: object) -> bool:
    """Half a character (a lone surrogate) names no column of any format."""
    if not isinstance(value, str) or not 0 < len(value) <= COLUMN_CHARS_MAX or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _wrong(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': {message}", param=param)
