"""Responses of a model: held to a schema, and the round trip of a call."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from nightshift.cli.demo import number_in_words
from nightshift.errors import InvalidRequest
from nightshift.jobs import Answer, JsonObject
from tests.unit.workers.serving.conftest import Listener, submit
from tests.unit.workers.serving.servers.hermes import PARAMETERS, WHERE
from workers.serving.models import Models

TOOL: JsonObject = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}


def respond(models: Models, input: Any, **fields: Any) -> Listener:
    body = {"model": models.ids[0], "input": input, "max_output_tokens": 200, "temperature": 0} | fields
    return submit(models, "/v1/responses", body)


def only(answer: Answer, kind: str) -> JsonObject:
    (item,) = (item for item in answer.body["output"] if item["type"] == kind)
    return dict(item)


def test_the_demo_model_answers_a_string_and_items(models: Models) -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "48213"}]}]
    answers = [respond(models, input).wait() for input in ("48213", items)]

    for answer in answers:
        assert only(answer, "message")["content"][0]["text"] == number_in_words(48213)
        assert (answer.body["status"], answer.body["created_at"]) == ("completed", 1_700_000_000)
        assert answer.body["usage"]["output_tokens"] == answer.usage.completion_tokens > 0


def test_an_answer_of_a_few_tokens_is_incomplete(models: Models) -> None:
    answer = respond(models, "48213", max_output_tokens=2).wait()

    assert answer.body["status"] == "incomplete"
    assert answer.body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer.body["usage"]["output_tokens"] == 2


def test_an_answer_is_held_to_its_schema(wild: Models) -> None:
    text = {"format": {"type": "json_schema", "name": "place", "schema": PARAMETERS, "strict": True}}
    answer = respond(wild, "Where?", text=text, temperature=1).wait()

    jsonschema.validate(json.loads(only(answer, "message")["content"][0]["text"]), PARAMETERS)


def test_a_call_is_made_and_its_result_is_answered(saying: Callable[[str], Models]) -> None:
    question = [{"role": "user", "content": "Where?"}]
    first = respond(saying(WHERE), question, tools=[TOOL])
    call = only(first.wait(), "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "3 C"}
    second = respond(saying("It is cold."), [*question, call, result], tools=[TOOL]).wait()

    assert first.text == ""
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Oslo", "unit": "C"})
    assert only(second, "message")["content"][0]["text"] == "It is cold."


IMAGE = "data:image/png;base64,AA"
CHAT = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]
PARTS = [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": IMAGE}]
ITEMS = [{"role": "user", "content": PARTS}]


@pytest.mark.parametrize(
    ("route", "field", "given", "param", "kind"),
    [
        ("/v1/responses", "input", ITEMS, "input[0].content[1].type", "input_image"),
        ("/v1/chat/completions", "messages", CHAT, "messages[0].content[0]", "image_url"),
        ("/v1/tokenize", "messages", CHAT, "messages[0].content[0]", "image_url"),
    ],
)
def test_an_image_is_refused_by_its_place(
    models: Models, route: str, field: str, given: Any, param: str, kind: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"'{kind}' is not supported by this model; use text") as refusal:
        submit(models, route, {"model": models.ids[0], field: given})
    assert refusal.value.param == param


def test_a_conversation_that_a_template_cannot_show_is_refused_by_the_input(models: Models) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    with pytest.raises(InvalidRequest) as calls:
        respond(models, [call])
    with pytest.raises(InvalidRequest) as long:
        respond(models, "7" * 1000)

    assert (calls.value.param, long.value.param) == ("input", "input")


def test_more_tokens_than_the_context_has_are_refused_by_their_own_name(models: Models) -> None:
    with pytest.raises(InvalidRequest) as refused:
        respond(models, "7", max_output_tokens=10_000)

    assert refused.value.param == "max_output_tokens"
