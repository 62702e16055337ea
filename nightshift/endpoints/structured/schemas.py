"""JSON schemas that answers can be held to: whether one is well formed, and uses only what is supported.

A schema is walked once, without compiling it: the cost is linear in its size, which is bounded. A worker
compiles it, within llguidance's limits, and refuses what those exclude. Its version is 1.9.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

SCHEMA_BYTES_MAX: Final = 64 * 1024
SCHEMA_DEPTH_MAX: Final = 32  # of schemas in one another
PATTERN_CHARS_MAX: Final = 1024

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
FORMATS: Final = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
UNSUPPORTED: Final = frozenset(
    {
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
        "additionalItems",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "x-guidance",
    }
)

_Placed = tuple[str, Any]
"""A path, and the schema there."""


def check_schema(schema: object, at: str) -> None:
    """Raises InvalidRequest naming the place of the first error, below the path `at`."""
    if not isinstance(schema, dict):
        raise _invalid(at, "a schema must be an object")
    size = size_of(schema, at)
    if size > SCHEMA_BYTES_MAX:
        raise _invalid(at, f"a schema of {size} bytes is too large; the limit is {SCHEMA_BYTES_MAX}")
    to_check: list[tuple[str, Any, int]] = [(at, schema, 1)]
    while to_check:
        path, inner_schema, depth = to_check.pop()
        if depth > SCHEMA_DEPTH_MAX:
            raise _invalid(path, f"schemas are nested more than {SCHEMA_DEPTH_MAX} deep")
        to_check += [(path, inner, depth + 1) for path, inner in _inner_schemas(inner_schema, path, schema)]


def size_of(value: object, at: str) -> int:
    """The bytes of a value as JSON. Raises InvalidRequest for one that is nested too deep to be written."""
    try:
        return len(json.dumps(value))  # ASCII
    except RecursionError as error:
        raise _invalid(at, "is nested too deep") from error


def _inner_schemas(schema: object, at: str, root: JsonObject) -> Iterator[_Placed]:
    """The schemas right below one, whose own keywords are checked."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _invalid(at, "a schema must be an object, true or false")
    for keyword, value in schema.items():
        path = f"{at}.{keyword}"
        if keyword in UNSUPPORTED:
            raise _invalid(path, f"the keyword '{keyword}' is not supported", code="unsupported_parameter")
        if keyword == "$ref":
            _check_reference(value, path, root)
        elif keyword in _CHECKS:
            is_right, what = _CHECKS[keyword]
            if not is_right(value):
                raise _invalid(path, what)
        yield from _below(keyword, value, path)


def _below(keyword: str, value: Any, path: str) -> Iterator[_Placed]:
    if keyword in ("items", "additionalProperties"):
        yield path, value
    elif keyword in ("properties", "patternProperties", "$defs", "definitions"):
        yield from ((f"{path}.{name}", inner) for name, inner in value.items())
    elif keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
        yield from ((f"{path}[{index}]", inner) for index, inner in enumerate(value))


def _check_reference(value: object, path: str, root: JsonObject) -> None:
    """Follows a reference within the schema, by a JSON pointer (RFC 6901)."""
    if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
        raise _invalid(path, "a reference must be to a part of the same schema, such as '#/$defs/name'")
    target: Any = root
    for part in value.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isascii() and name.isdecimal() and len(name) < 7:
            target = target[int(name)] if int(name) < len(target) else None
        else:
            target = target.get(name) if isinstance(target, dict) else None
    if not isinstance(target, dict | bool):
        raise _invalid(path, f"there is no schema at '{value}'")


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_pattern(value: object) -> bool:
    return isinstance(value, str) and len(value) <= PATTERN_CHARS_MAX


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_Check = tuple[Callable[[object], bool], str]
"""Whether a keyword's value is right, and the error if not."""

_OBJECT: Final[_Check] = (lambda value: isinstance(value, dict), "must be an object")
_LIST: Final[_Check] = (
    lambda value: isinstance(value, list) and bool(value),
    "must be a list with at least one entry",
)
_NUMBER: Final[_Check] = (_is_number, "must be a number")
_COUNT: Final[_Check] = (_is_count, "must be an integer of at least 0")

_CHECKS: Final[Mapping[str, _Check]] = {
    "type": (_is_type, f"a type must be one of {', '.join(TYPES)}, or a list of them"),
    "format": (lambda value: value in FORMATS, f"a format must be one of {', '.join(FORMATS)}"),
    "pattern": (_is_pattern, f"must be a string of at most {PATTERN_CHARS_MAX} characters"),
    "required": (_is_names, "must be a list of strings"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _OBJECT),
    **dict.fromkeys(("anyOf", "allOf", "oneOf", "prefixItems", "enum"), _LIST),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT
    ),
}


def _invalid(path: str, what: str, *, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"Invalid '{path}': {what}.", param=path, code=code)
