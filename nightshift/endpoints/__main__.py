"""Prints what docs/endpoints.md says of parameters that change nothing, and of those that are refused.

python -m nightshift.endpoints
"""

import json
import sys
from collections.abc import Iterator

from nightshift import endpoints
from nightshift.endpoints.hints import hints_of, values_of
from nightshift.endpoints.parameters import OPENAI


def accepted() -> Iterator[str]:
    """The table of parameters without effect."""
    routes: dict[str, list[str]] = {}
    said: dict[str, str] = {}
    for endpoint in endpoints.every():
        for path, field, mark in hints_of(endpoint.request_type):
            routes.setdefault(path, []).append(endpoint.name)
            said[path] = f"{values_of(field.annotation)} | {mark.because}"
    yield "| parameter | endpoints | values | here |"
    yield "|---|---|---|---|"
    for path, names in sorted(routes.items()):
        where = "all" if len(names) == len(endpoints.every()) else ", ".join(names)
        values, _, because = said[path].partition(" | ")
        yield f"| `{path}` | {where} | {values} | {because} |"


def refused() -> Iterator[str]:
    """The table of OpenAI's parameters that no endpoint has."""
    had = {name for endpoint in endpoints.every() for name in endpoint.request_type.model_fields}
    yield "| parameter | values that ask for nothing |"
    yield "|---|---|"
    for name in sorted(OPENAI.keys() - had):
        values = ", ".join(f"`{json.dumps(value)}`" for value in OPENAI[name])
        yield f"| `{name}` | {values or 'none'} |"


def main() -> None:
    sys.stdout.write("\n".join([*accepted(), "", *refused(), ""]))


if __name__ == "__main__":
    main()
