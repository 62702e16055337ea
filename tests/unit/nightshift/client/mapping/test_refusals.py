"""Calls that cannot be right are refused before anything is sent, naming the argument or the column."""

from datetime import timedelta
from typing import Any

import pandas
import pytest

from nightshift.errors import InvalidRequest

CYCLE: list[Any] = []
CYCLE.append(CYCLE)
ROWS = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]


@pytest.mark.parametrize(
    ("call", "param", "says"),
    [
        ({"prompt": "Summarise"}, "prompt", "names no column"),
        ({"prompt": "Summarise {text}"}, "prompt", "double braces"),
        ({"prompt": ""}, "prompt", "double braces"),
        ({"prompt": "{{txt}}"}, "prompt", "no column 'txt'; the data have: id, text"),
        ({"system": "In {{tongue}}"}, "prompt", "no column 'tongue'"),
        ({"key": "doc_id"}, "key", "no column 'doc_id'"),
        ({"key": 0}, "key", "expected a string, but got an integer"),
        ({"key": ["id", "text"]}, "key", "expected a string, but got an array"),
        ({"key": ""}, "key", "at least 1 character"),
        ({"data": [{"id": 1, 0: "x"}], "prompt": "{{0}}"}, "prompt", r"have: id, 0 \(no text\)"),
        ({"data": []}, "data", "no rows"),
        ({"data": pandas.DataFrame({"id": [], "text": []})}, "data", "no rows"),
        ({"data": [*ROWS, {"id": "a", "text": "x"}]}, "key", "'id' has 'a' in rows 0 and 2"),
        ({"data": [{"id": 1, "text": "x"}, {"id": "1", "text": "x"}]}, "key", "rows 0 and 1"),
        ({"data": [{"id": None, "text": "x"}]}, "id", "row 0 .* is no key"),
        ({"data": pandas.DataFrame({"id": [1], "text": [float("nan")]})}, "text", "row 0 .* is nan"),
        ({"data": [{"id": 1, "text": timedelta(1)}]}, "text", "is a timedelta, which has no text"),
        ({"data": [ROWS[0], {"id": "b"}]}, "data", "row 1 .* has no 'text'"),
        ({"data": [ROWS[0] | {"answer": "x"}]}, "data", "'answer' already"),
        ({"data": [{"id": "a", "text": "x" * 2**22}]}, "data", "row 0 .* 4194304 at most"),
        ({"data": "docs.csv"}, "data", "is no location"),
        ({"data": "s3://in/docs.csv"}, "output", "name the folder"),
        ({"output": "s3://out/"}, "output", "data that are a location"),
        ({"name": "a name"}, "name", "match pattern"),
        ({"name": 5}, "name", "expected a string, but got an integer"),
        ({"model": None}, "model", "expected a string, but got null"),
        ({"system": b"x"}, "system", "expected a string"),
        ({"priority": "urgent"}, "priority", "'interactive', 'standard' or 'background'"),
        ({"completion_window": "soon"}, "completion_window", "match pattern"),
        ({"completion_window": 8}, "completion_window", "expected a string, but got an integer"),
        ({"parameters": [("seed", 1)]}, "parameters", "expected an object, but got an array"),
        ({"temperature": 0}, "temperature", "belong in 'parameters'"),
        ({"modell": "m"}, "modell", "Did you mean 'model'"),
        ({"data": [{"id": "a", "text": CYCLE}]}, "text", "row 0 .* has itself in it"),
        ({"parameters": {"stop": CYCLE}}, "parameters", "no JSON: Circular"),
        ({"output_schema": {"type": "object", "enum": CYCLE}}, "output_schema", "no JSON: Circular"),
        ({"parameters": {"model": "other"}}, "parameters.model", "map sets it itself"),
        ({"parameters": {"tools": []}}, "parameters.tools", "no column for what it asks"),
        ({"parameters": {"temperature": 9}}, "parameters.temperature", "less than or equal"),
        ({"parameters": {"seed": object()}}, "parameters", "no JSON"),
        (
            {"output_schema": {"type": "object", "properties": {"text": {"type": "string"}}}},
            "output_schema.properties.text",
            "already",
        ),
        (
            {"output_schema": {"type": "object", "properties": {"a": {"const": "{{text}}"}}}},
            "output_schema",
            "double braces",
        ),
        (
            {"output_schema": {"type": "object", "properties": {"a": {"uniqueItems": True}}}},
            "output_schema.properties.a.uniqueItems",
            "not supported",
        ),
    ],
)
def test_a_call_that_cannot_be_right_is_refused_before_anything_is_sent(
    client, service, call: dict[str, Any], param: str, says: str
):
    with pytest.raises(InvalidRequest, match=says) as refused:
        client.map(**{"data": ROWS, "prompt": "Say: {{text}}", "model": "m", "key": "id"} | call)
    assert refused.value.param == param
    assert service.requests == []


def test_a_text_in_braces_that_is_to_stay_is_in_a_column(client, service):
    with pytest.raises(InvalidRequest, match=r"the text \{\{name\}\} itself, give a column"):
        client.map(ROWS, "Fill {{name}} into {{text}}", model="m")

    client.map([{"text": "one", "blank": "{{name}}"}], "Fill {{blank}} into {{text}}", model="m")
    assert service.prompts(service.jobs[0]) == ["Fill {{name}} into one"]


def test_parts_of_columns_and_parameters_of_a_row_are_allowed(client, service):
    rows = [{"meta": {"title": "x"}, "most": 9}]
    client.map(rows, "{{meta.title}}", model="m", parameters={"max_tokens": "{{most}}"})
    assert service.rows(service.jobs[0]) == [{"_row": "0", "meta": {"title": "x"}, "most": 9}]
