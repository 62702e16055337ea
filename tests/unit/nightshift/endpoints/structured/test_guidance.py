"""The form of an answer: fields that are read, and schemas that are refused with their place."""

import json
from functools import partial
from typing import Any

import pytest

from nightshift.endpoints.structured.guidance import Guidance
from nightshift.endpoints.structured.schemas import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, UNSUPPORTED
from tests.unit.nightshift.endpoints import parsing

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def parsed(route: str = "/v1/completions", **fields: Any) -> Guidance | None:
    guidance: Guidance | None = parsing.parsed(route, **fields).guidance
    return guidance


refused = partial(parsing.refused, "/v1/completions")


def response_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema} | more}


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"response_format": response_format(SCHEMA, strict=True)}, "json_schema", json.dumps(SCHEMA)),
        ({"guided_json": SCHEMA}, "json_schema", json.dumps(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
        ({"guided_regex": "a|b"}, "regex", "a|b"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a", "b"]'),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
        ({"regex": "a|b"}, "regex", "a|b"),
        ({"ebnf": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", json.dumps(SCHEMA)),
        ({"structured_outputs": {"choice": ["a"], "regex": None}}, "choice", '["a"]'),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
    ],
    ids=str,
)
def test_every_way_to_hold_an_answer_to_a_form_is_read(endpoint, fields, kind, text):
    guidance = parsed(endpoint, **fields)

    assert (guidance.kind, guidance.text) == (kind, text)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}])
def test_an_answer_may_be_any_text(fields):
    assert parsed(**fields) is None


AT = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        (7, AT),
        ({"properties": {"a": {"type": "strin"}}}, f"{AT}.properties.a.type"),
        ({"properties": {"a": 3}}, f"{AT}.properties.a"),
        ({"anyOf": [{}, {"minLength": -1}]}, f"{AT}.anyOf[1].minLength"),
        ({"items": {"enum": []}}, f"{AT}.items.enum"),
        ({"required": [1]}, f"{AT}.required"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, f"{AT}.$ref"),
        ({"$ref": "https://elsewhere/schema"}, f"{AT}.$ref"),
        ({"$defs": {"a": {"format": "iri"}}}, f"{AT}.$defs.a.format"),
        ({"pattern": "a" * 2000}, f"{AT}.pattern"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_place(schema, param):
    assert refused(response_format=response_format(schema)).param == param


@pytest.mark.parametrize("keyword", sorted(UNSUPPORTED))
def test_a_keyword_that_is_not_supported_is_named(keyword):
    error = refused(guided_json={"items": {keyword: True}})

    assert (error.param, error.code) == (f"guided_json.items.{keyword}", "unsupported_parameter")
    assert f"'{keyword}'" in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": []}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": response_format({}, name="a b")}, "response_format.json_schema.name"),
        ({"response_format": response_format({}, strict=1)}, "response_format.json_schema.strict"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a" * 5000}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
        ({"guided_choice": ["a" * 2**16]}, "guided_choice"),
        ({"guided_grammar": "a" * 2**15}, "guided_grammar"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json.not"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_field_is_refused_by_name(fields, param):
    assert refused(**fields).param == param


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_a_schema_has_limits_of_depth_and_size():
    assert parsed(guided_json=nested(SCHEMA_DEPTH_MAX)) is not None
    assert "deep" in refused(guided_json=nested(SCHEMA_DEPTH_MAX + 1)).message
    assert str(SCHEMA_BYTES_MAX) in refused(guided_json={"title": "a" * SCHEMA_BYTES_MAX}).message


def test_references_are_not_followed():
    """They would be 2**400 here: the test would not end."""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(400)}
    assert parsed(guided_json={"$defs": twice | {"d400": {}}, "$ref": "#/$defs/d0"})
