"""The metrics that a PromQL expression names: https://prometheus.io/docs/prometheus/latest/querying/basics/."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    | (?P<comment>\#[^\n]*)
    | (?P<variable>\$\{\w+(?::\w+)?\}|\$\w+|\[\[\w+\]\])
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<number>\.?\d[\w.]*)  # a duration too
    | (?P<sign>[^\s\w])
    """,
    re.VERBOSE,
)
_LABEL_VALUES: Final = re.compile(r"label_values\((?P<series>.*),\s*\w+\s*\)")  # Grafana's
WORDS: Final = frozenset({"and", "or", "unless", "bool", "offset", "start", "end", "inf", "nan", "atan2"})
LABEL_LISTS: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_CLOSING: Final = {"{": "}", "[": "]", "(": ")"}


def metric_names(expression: str) -> set[str]:
    """Names of labels, functions, operators and Grafana's variables are none."""
    of_variable = _LABEL_VALUES.fullmatch(expression.strip())
    if of_variable is not None:
        return metric_names(of_variable["series"])
    names: set[str] = set()
    tokens = list(_tokens(expression))
    place = 0
    while place < len(tokens):
        kind, word = tokens[place]
        follows = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if word in ("{", "["):
            names |= _quoted_names(tokens, place) if word == "{" else set()
            place = _after(tokens, place)
        elif kind == "name" and word.lower() in LABEL_LISTS:
            place = _after(tokens, place + 1) if follows == "(" else place + 1
        elif kind == "name" and follows != "(" and word.lower() not in WORDS:
            names.add(word)
            place += 1
        else:
            # An aggregation may name its labels before its parentheses: sum by (model) (x).
            place += 1
    return names - _aggregations(tokens)


def _aggregations(tokens: list[tuple[str, str]]) -> set[str]:
    """Aggregations that are followed by their labels."""
    pairs = pairwise(tokens)
    return {word for (kind, word), (_, follows) in pairs if kind == "name" and follows in ("by", "without")}


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(expression):
        assert match.lastgroup is not None
        if match.lastgroup != "comment":
            yield match.lastgroup, match.group()


def _quoted_names(tokens: list[tuple[str, str]], place: int) -> set[str]:
    """Names in `{__name__="x"}` and `{"x"}`."""
    inside = tokens[place + 1 : _after(tokens, place) - 1]
    names: set[str] = set()
    for at, (kind, word) in enumerate(inside):
        before = [text for _, text in inside[max(0, at - 2) : at]]
        is_first = at == 0 or inside[at - 1][1] == ","
        if kind == "text" and (before == ["__name__", "="] or is_first):
            names.add(word[1:-1])
    return names


def _after(tokens: list[tuple[str, str]], opening: int) -> int:
    """The place after what closes it. Raises ValueError."""
    first, depth = tokens[opening][1], 0
    for place in range(opening, len(tokens)):
        word = tokens[place][1]
        depth += (word == first) - (word == _CLOSING[first])
        if depth == 0:
            return place + 1
    raise ValueError(f"{first} is not closed")
