"""An upper bound of the patterns that one text of a JSON schema must match. Pure.

llguidance intersects the patterns that `allOf` brings together, in a time that doubles with each: 12 take a
tenth of a second, 15 take five, and its own limits do not count that.
"""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

PATTERNS_COMBINED_MAX: Final = 10

_PARTS_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas")
_PARTS: Final = ("items", "additionalProperties", "unevaluatedProperties", "contains", "propertyNames", "not")
_LISTS: Final = ("anyOf", "oneOf", "prefixItems")


def patterns_combined(schema: Any) -> int:
    """The most patterns that a text may have to match: the parts of an `allOf` are added, and of other parts
    the one with most counts. Raises ValueError for a reference that is no pointer to a place in the schema.
    """
    return _Counter(schema).of_schema(schema)


class _Counter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._by_reference: dict[str, int] = {}

    def of_schema(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 0
        own = int("pattern" in schema or "format" in schema)
        together = sum(map(self.of_schema, _list(schema.get("allOf"))))
        return own + self._of_reference(schema.get("$ref")) + together + self._most(_apart(schema))

    def _most(self, schemas: Iterable[Any]) -> int:
        return max(map(self.of_schema, schemas), default=0)

    def _of_reference(self, reference: Any) -> int:
        if not isinstance(reference, str):
            return 0
        if reference not in self._by_reference:
            self._by_reference[reference] = 0  # while it is counted: a schema may refer to itself
            self._by_reference[reference] = self.of_schema(self._referred(reference))
        return self._by_reference[reference]

    def _referred(self, reference: str) -> Any:
        """The place that a JSON pointer (RFC 6901) leads to."""
        base, *names = unquote(reference).split("/")
        place: Any = self._root if base == "#" else None
        for name in names:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list):
                place = place[int(name)] if name.isdecimal() and int(name) < len(place) else None
            else:
                place = place.get(name) if isinstance(place, dict) else None
        if place is None:
            raise ValueError(f"its $ref {reference[:100]!r} does not point to a place in the schema")
        return place


def _apart(schema: dict[str, Any]) -> Iterable[Any]:
    """The parts of a schema that are not all about the same text, besides those in `allOf`."""
    for name in _PARTS_BY_NAME:
        parts = schema.get(name)
        yield from parts.values() if isinstance(parts, dict) else ()
    for name in _LISTS:
        yield from _list(schema.get(name))
    for name in _PARTS:
        yield from _list(schema.get(name)) or [schema.get(name)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
