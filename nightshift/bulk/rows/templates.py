"""Request bodies with `{{column}}` in their texts, filled from records. No code is run.

A text that is one placeholder takes the value with its type, except where requests have texts: there a
number or a boolean becomes its text, as it does beside other words. Placeholders in values are not expanded.
`{{a.b}}` and `{{a[0]}}` are a field and an element of column `a`; a column of that very name comes first.
"""

import re
from collections.abc import Collection, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from nightshift.bulk.rows.records import UnreadableInput
from nightshift.bulk.rows.values import as_json, as_text
from nightshift.errors import InvalidRequest, shortened
from nightshift.jobs import JsonObject

# Blanks at its ends are stripped apart: a pattern that did it would take cubic time.
PLACEHOLDER: Final = re.compile(r"\{\{([^{}]+)\}\}")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([0-9]{1,9})\]")
_BEFORE_STEPS: Final = re.compile(r"[^.\[\]]+")
STEPS_MAX: Final = 64  # of a path
FILLED_CHARS_MAX: Final = 16 * 1024 * 1024  # per body, where one long text may be used many times
KNOWN_CHARS_MAX: Final = 1000  # of the columns that a message lists
TEXT_FIELDS: Final = frozenset(
    {
        *("content", "text", "input", "prompt", "instructions", "query", "documents", "text_1", "text_2"),
        *("text_pair", "suffix", "image", "model", "role", "name", "user", "stop"),
        *("source_language", "target_language"),
    }
)
"""Fields of requests in which no number and no boolean is valid."""


def render(template: JsonObject, record: JsonObject) -> JsonObject:
    """A record's request body. Raises InvalidRequest naming a missing column."""
    body: JsonObject = _Filling(record, FILLED_CHARS_MAX).filled(template)
    return body


def columns(template: Any) -> set[str]:
    """The columns in a template."""
    if isinstance(template, str):
        return {name.strip() for name in PLACEHOLDER.findall(template)}
    if isinstance(template, dict):
        return set().union(*map(columns, template.values()))
    if isinstance(template, list):
        return set().union(*map(columns, template))
    return set()


def parent_column(name: str) -> str | None:
    """The column that `a.b` or `a[0]` is a part of; None for a name that is no such path."""
    root = _BEFORE_STEPS.match(name)
    if root is None or root.end() == len(name):
        return None
    return root[0] if _steps(name, root.end()) is not None else None


def root_of(column: str, names: Collection[str]) -> str:
    """The name of the column that a column or a part of one, as in templates, is read from."""
    return column if column in names else parent_column(column) or column


def refuse_twice(twice: Set[str], columns: Collection[str] | None) -> None:
    """Raises `UnreadableInput` for a column that an object has twice, if it is among these. None: all."""
    used = twice if columns is None else twice & {root_of(column, twice) for column in columns}
    if used:
        raise UnreadableInput(
            f"It has more than one column named {min(used)!r}: name each of them differently."
        )


def _steps(name: str, start: int) -> list[str | int] | None:
    """The fields and elements of a path, from `start` on. None: it is no path."""
    steps: list[str | int] = []
    while start < len(name):
        step = _STEP.match(name, start)
        if step is None or len(steps) == STEPS_MAX:
            return None
        steps.append(step[1] if step[2] is None else int(step[2]))
        start = step.end()
    return steps


def value_of(record: JsonObject, name: str) -> Any:
    """A column's value, or a part's; a part of null is null. Raises KeyError for what is not there."""
    if name in record:
        return record[name]
    parent = parent_column(name)
    if parent is None:
        raise KeyError(name)
    value = record[parent]
    for step in _steps(name, len(parent)) or ():
        is_part = isinstance(value, dict) if isinstance(step, str) else isinstance(value, list)
        if value is None:
            return None
        if not is_part or (isinstance(step, int) and step >= len(value)):
            raise KeyError(name)
        value = value[step]
    return value


@dataclass
class _Filling:
    """The rendering of one body."""

    record: JsonObject
    chars_left: int

    def filled(self, value: Any, field: str = "") -> Any:
        """`field`: the innermost one that the value is in."""
        if isinstance(value, dict):
            return {key: self.filled(child, key) for key, child in value.items()}
        if isinstance(value, list):
            return [self.filled(child, field) for child in value]
        if not isinstance(value, str):
            return value
        whole = PLACEHOLDER.fullmatch(value)
        return self._whole(whole, field) if whole else PLACEHOLDER.sub(self._text, value)

    def _whole(self, placeholder: re.Match[str], field: str) -> Any:
        value = self._value(placeholder[1].strip())
        if isinstance(value, int | float | Decimal) and field in TEXT_FIELDS:
            return self._text(placeholder)
        return as_json(value)

    def _value(self, column: str) -> Any:
        try:
            return value_of(self.record, column)
        except KeyError:
            raise InvalidRequest(
                f"The template asks for a column '{column}' that the row does not have; "
                f"it has: {known_columns(self.record)}.",
                param=column,
                code="missing_column",
            ) from None

    def _text(self, placeholder: re.Match[str]) -> str:
        column = placeholder[1].strip()
        text = as_text(self._value(column), column)
        self.chars_left -= len(text)
        if self.chars_left < 0:
            raise InvalidRequest(
                f"The template makes more than {FILLED_CHARS_MAX} characters of this row.",
                param=column,
                code="row_too_large",
            )
        return text


def known_columns(record: JsonObject) -> str:
    """The names of a record's columns, for a message."""
    return shortened(", ".join(sorted(record)), KNOWN_CHARS_MAX) or "none"
