"""Schemas of answers: which columns they make, which are refused, and what an answer's values become."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from nightshift.client.mapping.forms import InvalidAnswer, Kind, OutputForm, ValueType
from nightshift.errors import InvalidRequest

TEXT, INTEGER, JSON = ValueType(Kind.TEXT), ValueType(Kind.INTEGER), ValueType(Kind.JSON)


class Place(BaseModel):
    city: str
    zip: int | None = None


class Person(BaseModel):
    name: str
    age: Annotated[int, Field(ge=0)] | None
    size: float
    kind: Literal["a", "b"]
    tags: list[str]
    home: Place
    before: list[Place] = []
    anything: dict[str, int]
    either: int | str


class Tree(BaseModel):
    inner: "Tree | None"


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_a_pydantic_model_has_a_column_for_each_field():
    place = ValueType(Kind.RECORD, fields={"city": TEXT, "zip": INTEGER})
    assert OutputForm.from_schema(Person).columns == {
        "name": TEXT,
        "age": INTEGER,
        "size": ValueType(Kind.NUMBER),
        "kind": TEXT,
        "tags": ValueType(Kind.LIST, element=TEXT),
        "home": place,
        "before": ValueType(Kind.LIST, element=place),
        "anything": JSON,
        "either": JSON,
    }


def test_a_model_that_refers_to_itself_ends_as_json():
    [type] = OutputForm.from_schema(Tree).columns.values()
    while type.kind is Kind.RECORD:
        [type] = type.fields.values()
    assert type == JSON


@pytest.mark.parametrize(
    ("schema", "type"),
    [
        ({"enum": ["a", "b"]}, TEXT),
        ({"const": "a"}, TEXT),
        ({"enum": ["a", 1]}, JSON),
        ({"type": ["integer", "null"]}, INTEGER),
        ({"type": ["integer", "string"]}, JSON),
        ({"anyOf": [{"type": "null"}]}, JSON),
        ({"oneOf": [{"type": "string"}]}, JSON),
        ({"type": "array"}, JSON),
        ({"type": "array", "prefixItems": [{}], "items": {"type": "string"}}, JSON),
        (True, JSON),
    ],
)
def test_a_column_has_a_type_where_the_schema_says_one(schema, type):
    assert OutputForm.from_schema(an_object(a=schema)).columns == {"a": type}


def test_no_answer_has_fields_without_a_column_wherever_an_object_lies():
    schema = OutputForm.from_schema(an_object(a={"type": "array", "items": an_object(b={})})).schema
    assert schema["additionalProperties"] is False
    assert schema["properties"]["a"]["items"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "array", "items": {"type": "string"}}, "output_schema"),
        ({"type": "object"}, "output_schema"),
        ({"$ref": "#"}, "output_schema"),
        ("person", "output_schema"),
        (an_object(age={"type": "int"}), "output_schema.properties.age.type"),
        (an_object(age={"not": {}}), "output_schema.properties.age.not"),
        (an_object(age={"type": "string", "format": "phone"}), "output_schema.properties.age.format"),
        (an_object(age={"$ref": "#/$defs/gone"}), "output_schema.properties.age.$ref"),
        (an_object(age={}) | {"additionalProperties": True}, "output_schema.additionalProperties"),
        (an_object(age={}) | {"allOf": [an_object(name={})]}, "output_schema.additionalProperties"),
        (an_object(age={}) | {"patternProperties": {"^x": {}}}, "output_schema.additionalProperties"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_at_its_place(schema, param):
    with pytest.raises(InvalidRequest) as refused:
        OutputForm.from_schema(schema)
    assert refused.value.param == param


def test_an_answer_is_read_as_its_columns_hold_it():
    form = OutputForm.from_schema(Person)
    said = (
        '{"name": "Ada", "age": 3.0, "size": 2, "kind": "a", "tags": ["x"], "home": {"city": "Bern"},'
        ' "anything": {"k": 1}, "either": "e"}'
    )
    assert form.read(said, json_as_text=False) == {
        "name": "Ada",
        "age": 3,
        "size": 2.0,
        "kind": "a",
        "tags": ["x"],
        "home": {"city": "Bern", "zip": None},
        "before": None,
        "anything": {"k": 1},
        "either": "e",
    }


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer"}, "9223372036854775808"),
        ({"type": "integer"}, "1.5"),
        ({"type": "number"}, "1e999"),
        ({"type": "number"}, f"1{'0' * 400}"),
        ({}, "[" * 100_000),
        ({"type": "boolean"}, "1"),
        ({"type": "string"}, "7"),
        ({"type": "string"}, '"\\ud800"'),
        ({"type": "array", "items": {"type": "string"}}, "[7]"),
        ({"type": "array", "items": {"type": "string"}}, '["cut of'),
    ],
)
def test_an_answer_that_no_column_holds_is_invalid(schema, said):
    with pytest.raises(InvalidAnswer):
        OutputForm.from_schema(an_object(a=schema)).read(f'{{"a": {said}}}', json_as_text=True)


def test_an_answer_that_is_no_object_is_invalid():
    with pytest.raises(InvalidAnswer, match="no JSON object"):
        OutputForm.from_schema(an_object(a={})).read("[]", json_as_text=True)
