"""Request bodies with `{{column}}` in their texts, filled from records. No code is run.

A text that is one placeholder takes the value with its type; elsewhere the value is written as text.
Placeholders in values are not expanded.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

# Blanks at its ends are stripped apart: a pattern that did it would take cubic time.
PLACEHOLDER: Final = re.compile(r"\{\{([^{}]+)\}\}")
FILLED_CHARS_MAX: Final = 16 * 1024 * 1024  # per body, where one long text may be used many times


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


@dataclass
class _Filling:
    """The rendering of one body."""

    record: JsonObject
    chars_left: int

    def filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.filled(child) for key, child in value.items()}
        if isinstance(value, list):
            return [self.filled(child) for child in value]
        if not isinstance(value, str):
            return value
        whole = PLACEHOLDER.fullmatch(value)
        return self._value(whole[1].strip()) if whole else PLACEHOLDER.sub(self._text, value)

    def _value(self, column: str) -> Any:
        if column not in self.record:
            known = ", ".join(sorted(self.record)) or "none"
            raise InvalidRequest(
                f"The template asks for a column '{column}' that the row does not have; it has: {known}.",
                param=column,
                code="missing_column",
            )
        return self.record[column]

    def _text(self, placeholder: re.Match[str]) -> str:
        column = placeholder[1].strip()
        text = _as_text(self._value(column))
        self.chars_left -= len(text)
        if self.chars_left < 0:
            raise InvalidRequest(
                f"The template makes more than {FILLED_CHARS_MAX} characters of this row.",
                param=column,
                code="row_too_large",
            )
        return text


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
