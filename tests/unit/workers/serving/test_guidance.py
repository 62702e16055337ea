"""Answers that are held to a form, from the request's field to the answer's text."""

import json
from typing import Any

import pytest

from tests.unit.workers.serving.conftest import chat, submit, texts
from workers.serving.models import Models

SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [7, 12, "many"]}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0, 1])
def test_every_choice_of_a_chat_answers_in_its_schema(models: Models, temperature: float) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    answer = chat(models, "Which one?", response_format=form, temperature=temperature, n=3).wait()

    for choice, text in zip(answer.body["choices"], texts(answer), strict=True):
        assert json.loads(text)["n"] in (7, 12, "many")
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"guided_choice": ["one", "two"]}, ("one", "two")),
        ({"guided_regex": "(x|y)"}, ("x", "y")),
        ({"structured_outputs": {"grammar": 'start: "p" | "q"'}}, ("p", "q")),
    ],
    ids=str,
)
def test_a_completion_is_held_to_its_form(
    models: Models, fields: dict[str, Any], right: tuple[str, ...]
) -> None:
    body = {"model": models.ids[0], "prompt": "Say", "seed": 3}
    answer = submit(models, "/v1/completions", body | fields).wait()

    assert answer.body["choices"][0]["text"] in right


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_json": {"type": "string", "minLength": 3, "maxLength": 2}}, "guided_json"),
        ({"structured_outputs": {"grammar": "start: missing"}, "n": 3}, "structured_outputs.grammar"),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_compiled_is_an_invalid_request(
    models: Models, fields: dict[str, Any], param: str
) -> None:
    listener = chat(models, f"about {param}", **fields)
    answer = listener.wait()

    assert (answer.status_code, answer.body["error"]["param"]) == (400, param)
    assert chat(models, f"after {param}", guided_choice=["fine"]).wait().status_code == 200
