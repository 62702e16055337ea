"""Functions of chats in OpenAI's old form: requests, messages, answers and streams."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nightshift.endpoints.texts.chat import Chat, ChatRequest
from nightshift.endpoints.texts.generation import Choice, Conversation
from nightshift.endpoints.texts.streams import AnswerHead, CallPiece
from nightshift.jobs import Usage
from nightshift.jobs.priorities import PriorityClass
from tests.unit.nightshift.endpoints.parsing import MESSAGE, parsed, refused

CHAT = "/v1/chat/completions"
WEATHER: dict[str, Any] = {"name": "weather", "parameters": {"type": "object"}}
HEAD = AnswerHead("chatcmpl-1", 5, PriorityClass.STANDARD)
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def a_request(**fields: Any) -> ChatRequest:
    request = parsed(CHAT, functions=[WEATHER], **fields)
    assert isinstance(request, ChatRequest)
    return request


def test_functions_are_offered_as_tools_of_which_one_may_be_called():
    as_tools = parsed(
        CHAT, tools=[{"type": "function", "function": WEATHER}], parallel_tool_calls=False
    ).callable_tools

    assert as_tools is not None
    in_old_words = replace(as_tools, choice_field="function_call")
    assert a_request().callable_tools == a_request(function_call="auto").callable_tools == in_old_words
    assert a_request(function_call="none").callable_tools is None
    forced = a_request(function_call={"name": "weather"}).callable_tools
    assert forced is not None
    assert forced.must_call


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [WEATHER | {"name": "a b"}]}, "functions[0].name"),
        ({"functions": [WEATHER, 5]}, "functions[1].name"),
        ({"functions": [WEATHER, WEATHER]}, "functions"),
        ({"functions": "weather"}, "functions"),
        ({"functions": [WEATHER], "tools": [{"type": "function", "function": WEATHER}]}, "functions"),
        ({"functions": [WEATHER], "function_call": {"name": "f"}}, "function_call"),
        ({"functions": [WEATHER], "function_call": "always"}, "function_call"),
        ({"function_call": "auto"}, "function_call"),
    ],
    ids=str,
)
def test_a_wrong_function_is_refused_by_its_old_name(fields, param):
    refusal = refused(CHAT, **fields)
    assert refusal.param == param
    assert "tool" not in refusal.message.replace("'tools'", "")


@pytest.mark.parametrize("choice", ["required", "none", {"type": "function", "function": {"name": "f"}}])
def test_a_choice_among_tools_is_refused_beside_functions_and_not_dropped(choice):
    refusal = refused(CHAT, functions=[WEATHER], tool_choice=choice)
    assert refusal.param == "tool_choice"
    assert "'function_call'" in refusal.message


def test_an_answer_has_its_call_in_the_old_form():
    choice = Choice("", "tool_calls", None, [CALL])
    body = Chat().answer(a_request(), HEAD, choices=[choice], usage=Usage())
    result = Chat().result(a_request(), HEAD, choices=[choice], usage=Usage())

    assert result.body == body
    [shown] = body["choices"]
    assert shown["message"]["function_call"] == CALL["function"]
    assert "tool_calls" not in shown["message"]
    assert shown["finish_reason"] == "function_call"
    assert Chat().calls(body)[0][0]["function"] == CALL["function"]
    assert json.loads(str(result.values["tool_calls"])) == [CALL]
    said = Chat().answer(a_request(), HEAD, choices=[Choice("x", "stop")], usage=Usage())
    assert said["choices"][0]["message"] == {"role": "assistant", "content": "x", "refusal": None}


def test_a_streamed_call_has_the_old_form():
    events = Chat().events(a_request(), HEAD)
    pieces = [CallPiece(0, "weather", '{"a', is_first=True), CallPiece(0, "weather", '": 1}', is_first=False)]
    deltas = [
        json.loads(event.data)["choices"][0]["delta"]["function_call"]
        for piece in pieces
        for event in events.call_piece(0, piece)
    ]

    assert deltas == [{"name": "weather", "arguments": '{"a'}, {"arguments": '": 1}'}]
    recorded = Chat().answer(
        a_request(), HEAD, choices=[Choice("", "tool_calls", None, [CALL])], usage=Usage()
    )
    [closing] = events.closing(0, recorded)
    assert json.loads(closing.data)["choices"][0]["finish_reason"] == "function_call"


def test_earlier_calls_and_results_are_shown_to_the_model_as_those_of_tools():
    messages = [
        MESSAGE,
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "weather", "content": "7"},
    ]
    [prompt] = parsed(CHAT, messages=messages, functions=[WEATHER]).prompts_given

    assert isinstance(prompt, Conversation)
    _, call, result = prompt.messages
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"a": 1}}
    assert (result["role"], result["name"], result["content"]) == ("tool", "weather", "7")
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
