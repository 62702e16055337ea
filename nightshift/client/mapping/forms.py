"""The form of the answers: a text, or an object by a JSON schema whose properties become columns.

A property's column has a type where the schema says one (a text, a number, a boolean, a list, an object with
fields); a union, or an object with any fields, becomes its JSON as text.
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from nightshift.endpoints.structured.schemas import SCHEMA_DEPTH_MAX, check_schema
from nightshift.errors import InvalidRequest, NightshiftError
from nightshift.jobs import JsonObject

ANSWER: Final = "answer"  # the column of answers without a schema
PARAM: Final = "output_schema"
COMBINING: Final = frozenset({"patternProperties", "allOf", "anyOf", "oneOf"})  # which name more properties
INTEGER_MAX: Final = 2**63  # more has no column type
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Kind(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    RECORD = "record"
    JSON = "json"


@dataclass(frozen=True)
class ValueType:
    """`element`: of a list. `fields`: of a record, by name."""

    kind: Kind
    element: "ValueType | None" = None
    fields: Mapping[str, "ValueType"] = field(default_factory=dict)


def invalid(param: str, what: str, code: str | None = None) -> InvalidRequest:
    """The error that names an argument."""
    return InvalidRequest(f"Invalid '{param}': {what}.", param=param, code=code)


class InvalidAnswer(NightshiftError):
    """The answer does not have the form that was wished."""

    default_code = "invalid_answer"


@dataclass(frozen=True)
class OutputForm:
    """`columns`: the types of the columns that an answer becomes. `schema`: None for texts."""

    columns: Mapping[str, ValueType]
    schema: JsonObject | None = None

    @classmethod
    def from_schema(cls, output_schema: object) -> "OutputForm":
        """The form by a JSON schema, a pydantic model, or None. Raises InvalidRequest naming the place."""
        if output_schema is None:
            return cls({ANSWER: ValueType(Kind.TEXT)})
        if hasattr(output_schema, "model_json_schema"):
            output_schema = output_schema.model_json_schema()
        if not isinstance(output_schema, dict):
            raise invalid(PARAM, "give a JSON schema as a dict, or a pydantic model (the class)")
        schema = as_json_object(output_schema, PARAM)
        check_schema(schema, PARAM)
        schema = _closed(schema)
        top = _resolved(schema, schema)
        if top.get("type") != "object" or not top.get("properties"):
            raise invalid(
                PARAM,
                "its 'type' must be 'object' with 'properties', each of which becomes a column; put a list "
                "or a single value into a property",
            )
        if top.get("additionalProperties") is not False or "patternProperties" in top:
            raise invalid(f"{PARAM}.additionalProperties", "only named properties become columns")
        return cls(_value_type(top, schema, 0).fields, schema)

    def read(self, text: str, *, json_as_text: bool) -> dict[str, Any]:
        """An answer's values by column, null where it has none. Raises InvalidAnswer.

        `json_as_text`: values of the kind JSON become texts, which columns of a table hold.
        """
        if self.schema is None:
            return {ANSWER: _fitted(text, self.columns[ANSWER], ANSWER, json_as_text)}
        try:
            answer = json.loads(text)
            if isinstance(answer, dict):
                return {
                    name: _fitted(answer.get(name), type, name, json_as_text)
                    for name, type in self.columns.items()
                }
        except (ValueError, RecursionError) as error:
            raise InvalidAnswer(f"The answer is no JSON: {error}.") from error
        raise InvalidAnswer("The answer is no JSON object.")


def as_json_object(given: Mapping[str, Any], param: str) -> JsonObject:
    """The argument as it is sent. Raises InvalidRequest for what is no JSON."""
    try:
        return dict(json.loads(json.dumps(dict(given), allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(param, f"it is no JSON: {error}") from error


def _closed(schema: Any) -> Any:
    """The schema without properties beside those it names, where it does not speak of others."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for keyword in ("properties", "$defs", "definitions"):
        if keyword in closed:
            closed[keyword] = {name: _closed(inner) for name, inner in closed[keyword].items()}
    for keyword in ("anyOf", "oneOf", "prefixItems"):
        if keyword in closed:
            closed[keyword] = [_closed(inner) for inner in closed[keyword]]
    if "items" in closed:
        closed["items"] = _closed(closed["items"])
    if "properties" in closed and not COMBINING & closed.keys():
        closed.setdefault("additionalProperties", False)
    return closed


def _resolved(schema: Any, root: JsonObject) -> JsonObject:
    """The schema that a chain of references ends at; an empty one where it is none or has no end."""
    for _ in range(SCHEMA_DEPTH_MAX):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema if isinstance(schema, dict) else {}
        target: Any = root
        for part in schema["$ref"].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target[int(name)] if isinstance(target, list) else target[name]
        schema = target
    return {}


_SCALARS: Final = {
    "string": Kind.TEXT,
    "integer": Kind.INTEGER,
    "number": Kind.NUMBER,
    "boolean": Kind.BOOLEAN,
}


def _value_type(schema: Any, root: JsonObject, depth: int) -> ValueType:
    schema = _resolved(schema, root)
    if depth > SCHEMA_DEPTH_MAX:  # it refers to itself
        return ValueType(Kind.JSON)
    if "anyOf" in schema:
        [inner, *more] = [one for one in schema["anyOf"] if one != {"type": "null"}] or [{}]
        return ValueType(Kind.JSON) if more else _value_type(inner, root, depth + 1)
    if "oneOf" in schema or "allOf" in schema:
        return ValueType(Kind.JSON)
    type = _type_name(schema)
    if type in _SCALARS:
        return ValueType(_SCALARS[type])
    if type == "array" and "items" in schema and "prefixItems" not in schema:
        return ValueType(Kind.LIST, element=_value_type(schema["items"], root, depth + 1))
    if type == "object" and schema.get("properties") and schema.get("additionalProperties") is False:
        properties = schema["properties"].items()
        return ValueType(
            Kind.RECORD, fields={name: _value_type(inner, root, depth + 1) for name, inner in properties}
        )
    return ValueType(Kind.JSON)


def _type_name(schema: JsonObject) -> str | None:
    """The one type beside null. None: there are several, or it is not said."""
    said = schema.get("type")
    if said is None:
        choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
        return "string" if choices and all(isinstance(choice, str) for choice in choices) else None
    names = [name for name in ([said] if isinstance(said, str) else said) if name != "null"]
    return str(names[0]) if len(names) == 1 else None


def _fitted(value: Any, type: ValueType, at: str, json_as_text: bool) -> Any:
    """The value as a column of this type holds it. Raises InvalidAnswer."""
    if value is None:
        return None
    match type.kind:
        case Kind.TEXT if isinstance(value, str):
            if _SURROGATE.search(value):
                raise InvalidAnswer(f"'{at}' has half a character (a lone surrogate).")
            return value
        case Kind.BOOLEAN if isinstance(value, bool):
            return value
        case Kind.INTEGER if _is_number(value) and value == int(value) and abs(value) < INTEGER_MAX:
            return int(value)
        case Kind.NUMBER if _is_number(value) and abs(value) <= sys.float_info.max:
            return float(value)
        case Kind.LIST if isinstance(value, list) and type.element is not None:
            return [
                _fitted(inner, type.element, f"{at}[{index}]", json_as_text)
                for index, inner in enumerate(value)
            ]
        case Kind.RECORD if isinstance(value, dict):
            return {
                name: _fitted(value.get(name), inner, f"{at}.{name}", json_as_text)
                for name, inner in type.fields.items()
            }
        case Kind.JSON:
            return json.dumps(value) if json_as_text else value  # ASCII: half a character has a place
    raise InvalidAnswer(f"'{at}' is no {type.kind}, or one that no column holds.")


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))
