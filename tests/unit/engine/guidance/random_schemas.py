"""Random JSON schemas whose instances are short, and the check of an output against one."""

import json
import random
from typing import Any

import jsonschema

from nightshift_engine import Grammar

Schema = dict[str, Any]
DEPTH_MAX = 3


def random_schema(rng: random.Random, depth: int = 0) -> Schema:
    """A schema of any kind that the service accepts; every instance has at most about 400 characters."""
    leaves = [_string, _pattern, _integer, _enum, _const, _boolean, _null]
    nested = [_object, _object, _array, _any_of, _reference]
    kinds = leaves if depth >= DEPTH_MAX else [*leaves, *nested] if depth else nested
    return rng.choice(kinds)(rng, depth)


def _string(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 5)}


def _pattern(rng: random.Random, depth: int) -> Schema:
    return {"type": "string", "pattern": rng.choice([r"^[a-f]{2,4}$", r"^\d{3}-\d{2}$", "^(yes|no)$"])}


def _integer(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 10_000)}


def _enum(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample(["red", "grün", 'a"b', 7, -1.5, True, None, "日本", [1, 2], {"k": "v"}], 3)}


def _const(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice(["x", 3, None, False, "\\"])}


def _boolean(rng: random.Random, depth: int) -> Schema:
    return {"type": "boolean"}


def _null(rng: random.Random, depth: int) -> Schema:
    return {"type": ["null", "boolean"]}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(["a", "name", "größe", "x y", "z_9"], rng.randint(1, 3))
    properties = {name: random_schema(rng, depth + 1) for name in names}
    required = [name for name in names if rng.random() < 0.7]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 1)
    items = random_schema(rng, depth + 1)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth + 1), random_schema(rng, depth + 1)]}


def _reference(rng: random.Random, depth: int) -> Schema:
    if depth:
        return _object(rng, depth)
    schema = _object(rng, DEPTH_MAX - 1)
    schema["properties"]["again"] = {"$ref": "#/$defs/again"}
    return schema | {"$defs": {"again": random_schema(rng, depth + 2)}}


def grammar_of(schema: Schema) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


def check(text: str, schema: Schema) -> None:
    """Raises ValueError or jsonschema's ValidationError."""
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
