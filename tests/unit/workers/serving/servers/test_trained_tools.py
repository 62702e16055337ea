"""Models that learned to call tools, with tokenizers in which the tags of a call are tokens of their own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.jobs import JsonObject
from tests.unit.engine.tiny.decoders import make_engine
from tests.unit.workers.serving.conftest import Listener, chat, submit
from tests.unit.workers.serving.servers.hermes import models_over, stop
from tests.unit.workers.serving.servers.trained import (
    ANSWERS,
    CALLS,
    CALLS_IN_LETTERS,
    CALLS_TWICE,
    TALKS,
    THINKS_AND_CALLS,
    TOOLS,
    WRITES_JSON,
    save_trained,
)
from workers.serving.models import Models

WEATHER: JsonObject = {"type": "function", "function": {"name": "weather"}}
CITY: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CITY_FORMAT: JsonObject = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY}}


MORE = pytest.mark.exhaustive


def first_alone(cases: dict[str, JsonObject]) -> list[Any]:
    """The cases, of which the default run takes the first."""
    first, *others = cases.values()
    return [first, *(pytest.param(other, marks=MORE) for other in others)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="qwen"), pytest.param(True, id="hermes", marks=MORE)],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """`special` says how the tokenizer's files mark the tags."""
    directory: Path = save_trained(tmp_path_factory.mktemp("trained"), is_special=request.param)
    models = models_over(make_engine(directory, num_kv_blocks=1024))
    yield models
    stop(models)


def ask(models: Models, text: str, **fields: Any) -> Listener:
    return chat(models, text, **({"tools": TOOLS, "max_tokens": 240} | fields))


def outcome(listener: Listener) -> tuple[str | None, list[tuple[str, str]]]:
    """The content and the calls. What was streamed makes up the same."""
    (choice,) = listener.wait().body["choices"]
    calls = choice["message"].get("tool_calls", [])
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    assert listener.arguments == [call["function"]["arguments"] for call in calls]
    content = choice["message"]["content"]
    assert listener.text == (content or "")
    named = [(call["function"]["name"], json.loads(call["function"]["arguments"])["city"]) for call in calls]
    return content, named


@pytest.mark.parametrize(
    ("question", "content", "calls"),
    [
        (CALLS, None, [("weather", "Oslo")]),
        (CALLS_TWICE, None, [("weather", "Bonn"), ("time", "Lima")]),
        pytest.param(CALLS_IN_LETTERS, None, [("time", "Kiel")], marks=MORE),
        (THINKS_AND_CALLS, None, [("weather", "Rome")]),
        (TALKS, ANSWERS[TALKS], []),
    ],
)
def test_a_model_decides_for_itself_what_it_calls(
    trained: Models, question: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    assert outcome(ask(trained, question)) == (content, calls)


NOTHING: JsonObject = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 5, "maxLength": 2}},
    "required": ["a"],
}
WRONG: dict[str, JsonObject] = {
    "nothing": NOTHING,
    "half a surrogate pair": {"type": "object", "description": "\ud83c"},
    "a number": {"type": "object", "properties": {"a": {"const": 10**400}}},
}


@pytest.mark.parametrize("schema", WRONG.values(), ids=WRONG)
def test_a_schema_that_nothing_satisfies_or_the_compiler_cannot_read_is_refused_by_its_field(
    trained: Models, schema: JsonObject
) -> None:
    function = {"name": "f", "parameters": schema, "strict": True}
    tools = [*TOOLS, {"type": "function", "function": function}]

    def refused(form: JsonObject | None, **fields: Any) -> str:
        if form is not None:
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": form}}
        answer = ask(trained, CALLS, **fields).wait()
        assert answer.status_code == 400
        error = answer.body["error"]
        assert schema is not NOTHING or "property 'a' is unsatisfiable" in error["message"]
        return str(error["param"])

    assert refused(schema) == "response_format"
    assert refused(None, tools=tools) == "tools[2]"
    assert refused(CITY, tools=tools) == "tools[2]"


@pytest.mark.parametrize("choice", ["required", pytest.param(WEATHER, marks=MORE)], ids=["required", "named"])
@pytest.mark.parametrize("question", [CALLS, TALKS])
def test_a_model_that_must_call_calls_whatever_it_would_say(
    trained: Models, question: str, choice: str | JsonObject
) -> None:
    fields = {"tool_choice": choice, "parallel_tool_calls": False, "thinking_token_budget": 0}
    content, calls = outcome(ask(trained, question, **fields))

    assert content is None
    assert len(calls) == 1
    assert calls == [("weather", "Oslo")] or question == TALKS


def complete(models: Models, **fields: Any) -> str:
    """A plain completion, whose thoughts are text like any other."""
    body = {"model": models.ids[0], "prompt": "a", "temperature": 0, "max_tokens": 40}
    answer = submit(models, "/v1/completions", body | fields).wait()
    return str(answer.body["choices"][0]["text"])


def test_a_thought_before_a_call_is_parted_from_it(trained: Models) -> None:
    listener = ask(trained, THINKS_AND_CALLS)

    assert listener.wait().body["choices"][0]["message"]["reasoning_content"] == listener.reasoning == "hm"


def test_tags_are_text_where_no_thoughts_are_parted(trained: Models) -> None:
    assert complete(trained, guided_regex=r"<think>[a-z\n]{1,9}</think>").startswith("<think>")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: <think> "hm" </think>',
        'start: "<think>" "hm" "</think>"',
        'start: <think> /[h]/ "m" </think>  // not "<think>',
    ],
)
def test_a_grammar_may_name_a_tag_as_a_token_or_as_text(trained: Models, grammar: str) -> None:
    assert complete(trained, guided_grammar=grammar) == "<think>hm</think>"


@pytest.mark.parametrize(
    "text", ["<tool_call>", pytest.param("a</think>", marks=MORE), pytest.param("<|im_start|>", marks=MORE)]
)
def test_a_form_may_have_the_text_of_any_token(trained: Models, text: str) -> None:
    """A control token is no text: its name is written letter by letter."""
    answer = ask(trained, TALKS, tools=None, guided_choice=[text], thinking_token_budget=0).wait()

    assert answer.body["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("question", "choice", "content", "calls"),
    [
        (WRITES_JSON, "auto", ANSWERS[WRITES_JSON], []),
        (CALLS, "auto", None, [("weather", "Oslo")]),
        (CALLS_TWICE, "auto", None, [("weather", "Bonn"), ("time", "Lima")]),
        (CALLS_TWICE, "required", None, [("weather", "Bonn"), ("time", "Lima")]),
        (CALLS, WEATHER, None, [("weather", "Oslo")]),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "form",
    [CITY_FORMAT, pytest.param({"type": "json_object"}, marks=MORE)],
    ids=["schema", "object"],
)
def test_a_model_with_tools_and_a_form_calls_or_answers_in_the_form(
    trained: Models,
    question: str,
    choice: str | JsonObject,
    content: str | None,
    calls: list[tuple[str, str]],
    form: JsonObject,
) -> None:
    listener = ask(trained, question, tool_choice=choice, response_format=form)

    assert outcome(listener) == (content, calls)


UNUSABLE: dict[str, JsonObject] = {
    "nothing": NOTHING,
    "overlap": {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
    "look-ahead": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)b"}}},
    "back-reference": {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(a)\\1"}}},
}


@pytest.mark.parametrize("parameters", UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize("choice", ["auto", pytest.param("required", marks=MORE)])
def test_a_tool_that_is_not_strict_takes_any_object_where_its_schema_cannot_be_kept_to(
    trained: Models, parameters: JsonObject, choice: str
) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": parameters}}

    assert outcome(ask(trained, CALLS, tools=[*TOOLS, other], tool_choice=choice)) == outcome(
        ask(trained, CALLS, tool_choice=choice)
    )


NOT_SUPPORTED: dict[str, JsonObject] = {
    "set": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "format": {"type": "string", "format": "binary"},
    "names": {"type": "object", "propertyNames": {"pattern": "^x"}},
    "not": {"not": {"type": "null"}},
    "if": {"if": {"type": "null"}, "then": {"const": None}},
    "draft 4": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
}


@pytest.mark.parametrize("other", first_alone(NOT_SUPPORTED), ids=NOT_SUPPORTED)
def test_a_tool_that_is_not_strict_is_kept_to_the_rest_of_its_schema(
    trained: Models, other: JsonObject
) -> None:
    properties = {"city": {"enum": ["Bonn"]}, "other": other}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    weather = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    # The model was shown another schema, and learned to say Oslo.
    _, calls = outcome(ask(trained, CALLS, tools=[weather], tool_choice="required", max_tokens=600))

    assert calls[0] == ("weather", "Bonn")


def test_a_model_that_may_not_call_answers_in_the_form(trained: Models) -> None:
    fields = {"tool_choice": "none", "response_format": CITY_FORMAT, "max_tokens": 400}
    content = ask(trained, WRITES_JSON, **fields).wait().body["choices"][0]["message"]["content"]

    assert set(json.loads(content)) == {"city"}
