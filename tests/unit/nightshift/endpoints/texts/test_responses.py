"""POST /v1/responses: what a request may say, the answer's object, and the events of its stream."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses import Response

from nightshift.endpoints.responses import Responses
from nightshift.endpoints.responses.request import ResponsesRequest
from nightshift.endpoints.texts.generation import Choice, Conversation
from nightshift.endpoints.texts.streams import AnswerHead, CallPiece, Piece
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass
from tests.unit.nightshift.endpoints import parsing

HEAD = AnswerHead("resp_1", 1_700_000_000, PriorityClass.STANDARD)
USAGE = Usage(3, 2, 1)
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "3 C"}


ROUTE = "/v1/responses"


def parsed(input: Any = "a", **fields: Any) -> ResponsesRequest:
    request: ResponsesRequest = parsing.parsed(ROUTE, input=input, **fields)
    return request


def conversation(input: Any, **fields: Any) -> list[JsonObject]:
    (prompt,) = parsed(input, **fields).prompts_given
    assert isinstance(prompt, Conversation)
    return list(prompt.messages)


def refused(input: Any = "a", **fields: Any) -> InvalidRequest:
    return parsing.refused(ROUTE, input=input, **fields)


def said(text: Any, type: str = "input_text") -> dict[str, Any]:
    return {"type": type, "text": text}


def template_call(id: str = "c1") -> JsonObject:
    function = {"name": "weather", "arguments": {"city": "Oslo"}}
    return {"id": id, "type": "function", "function": function}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [said("hm", "reasoning_text")]}


@pytest.mark.parametrize(
    ("input", "messages"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        ([{"role": "developer", "content": "a"}], [{"role": "system", "content": "a"}]),
        (
            [{"type": "message", "role": "user", "content": [said("a"), said("b")]}],
            [{"role": "user", "content": "ab"}],
        ),
        (
            [
                {"role": "assistant", "content": [said("a", "output_text")]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ],
            [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "no"}],
        ),
        (
            [{"role": "user", "content": "?"}, CALL, CALL | {"call_id": "c2"}, RESULT],
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "", "tool_calls": [template_call(), template_call("c2")]},
                {"role": "tool", "content": "3 C", "tool_call_id": "c1", "name": "weather"},
            ],
        ),
        (
            [{"role": "assistant", "content": "Let me see."}, CALL, RESULT | {"output": [said("3 C")]}],
            [
                {"role": "assistant", "content": "Let me see.", "tool_calls": [template_call()]},
                {"role": "tool", "content": "3 C", "tool_call_id": "c1", "name": "weather"},
            ],
        ),
        (
            [THOUGHT, {"role": "assistant", "content": "a"}, {"type": "reasoning", "encrypted_content": "x"}],
            [{"role": "assistant", "content": "a", "reasoning_content": "hm"}],
        ),
        (
            [{"role": "assistant", "content": "a"}, THOUGHT, CALL, THOUGHT, {"role": "user", "content": "b"}],
            [
                {"role": "assistant", "content": "a"},
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": "hm",
                    "tool_calls": [template_call()],
                },
                {"role": "user", "content": "b"},
            ],
        ),
        (
            [CALL | {"arguments": '{"city": "Os'}],
            [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "c1", "type": "function"}
                        | {"function": {"name": "weather", "arguments": '{"city": "Os'}}
                    ],
                }
            ],
        ),
    ],
    ids=str,
)
def test_items_become_the_messages_of_a_chat(input, messages):
    assert conversation(input) == messages
    assert conversation(input, instructions="Be kind.") == [
        {"role": "system", "content": "Be kind."},
        *messages,
    ]


@pytest.mark.parametrize(
    ("input", "param"),
    [
        (None, "input"),
        (5, "input"),
        ([], "input"),
        (["a"], "input[0]"),
        ([{"role": "user", "content": "a"}, {}], "input[1].type"),
        ([{"type": "reasoning", "summary": "a"}, {"type": "item"}], "input[1].type"),
        (
            [{"type": "reasoning", "summary": [{"type": "input_text", "text": "a"}]}],
            "input[0].summary[0].type",
        ),
        ([{"type": "reasoning", "content": [{"type": "reasoning_text"}]}], "input[0].content[0].text"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type"),
        ([{"type": 5}], "input[0].type"),
        ([{"role": "tool", "content": "a"}], "input[0].role"),
        ([{"role": [], "content": "a"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"role": "user", "content": ["a"]}], "input[0].content[0]"),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_image"}]}],
            "input[1].content[0].image_url",
        ),
        ([{"role": "user", "content": [said("a"), {"type": "input_video"}]}], "input[0].content[1].type"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [said(5)]}], "input[0].content[0].text"),
        ([CALL | {"call_id": None}], "input[0].call_id"),
        ([CALL | {"name": "a b"}], "input[0].name"),
        ([CALL | {"arguments": 5}], "input[0].arguments"),
        ([CALL | {"arguments": "[" + "{}," * 300_000}], "input[0].arguments"),
        ([RESULT], "input[0].call_id"),
        ([CALL, RESULT | {"output": [{"type": "input_image"}]}], "input[1].output[0].image_url"),
        ([CALL] * 129, "input[128]"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_item_is_refused_by_its_place(input, param):
    refusal = refused(input)

    assert refusal.param == param
    assert param in refusal.message or "No tool call found" in refusal.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"budget": 5}}, "reasoning.budget"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"include": ["reasoning.encrypted_content", "web_search_call.all"]}, "include[1]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tools": [WEATHER | {"parameters": {"not": {}}}]}, "tools[0].parameters.not"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "guided_regex": "a"}, "guided_regex"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}},
            "text.format.schema.not",
        ),
        ({"text": "json"}, "text"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"metadata": {"tags": []}}, "metadata.tags"),
        ({"stream_options": {}}, "stream_options"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "include": ["reasoning.encrypted_content"]}, "top_logprobs"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_name(fields, param):
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "background": False, "previous_response_id": None, "conversation": None},
        {"truncation": "disabled", "include": [], "prompt_cache_key": "k", "max_tool_calls": 3},
        {"reasoning": {"effort": "none", "summary": None}, "include": ["reasoning.encrypted_content"]},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "top_logprobs": 0},
    ],
    ids=str,
)
def test_what_asks_for_nothing_else_is_accepted(fields):
    request = parsed(**fields)

    assert (request.guidance, request.callable_tools, request.logprobs_asked) == (None, None, None)


def test_a_schema_and_tools_are_as_of_a_chat():
    schema = {"type": "object"}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    guidance = parsed(text=text).guidance
    request = parsed(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    tools = request.callable_tools

    form = (guidance.kind, json.loads(guidance.text), guidance.field)
    assert form == ("json_schema", schema, "text.format")
    assert (tools.must_call, tools.callable, tools.is_parallel) == (True, ["weather"], False)
    function = {name: WEATHER[name] for name in ("name", "parameters", "strict")}
    assert request.tools_shown == [{"type": "function", "function": function}]


def answer(request: ResponsesRequest, choice: Choice) -> JsonObject:
    body = Responses().answer(request, HEAD, choices=[choice], usage=USAGE)
    Response.model_validate(body)
    return body


CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("choice", "status", "kinds"),
    [
        (Choice("hello", "stop"), "completed", ["message"]),
        (Choice("", "stop"), "completed", ["message"]),
        (Choice("hel", "length"), "incomplete", ["message"]),
        (Choice("", "tool_calls", calls=[CALLED]), "completed", ["function_call"]),
        (Choice("So:", "length", calls=[CALLED]), "incomplete", ["message", "function_call"]),
        (Choice("So:", "stop", calls=[CALLED] * 2), "completed", ["message", *["function_call"] * 2]),
        (Choice("7", "stop", reasoning="hm"), "completed", ["reasoning", "message"]),
        (Choice("", "length", reasoning="hm"), "incomplete", ["reasoning"]),
        (Choice("7", "length", reasoning="hm"), "incomplete", ["reasoning", "message"]),
        (
            Choice("", "tool_calls", calls=[CALLED], reasoning="hm"),
            "completed",
            ["reasoning", "function_call"],
        ),
    ],
)
def test_an_answer_has_its_output_and_what_was_asked(choice, status, kinds):
    fields = {"instructions": "Be kind.", "metadata": {"a": "b"}, "top_p": 0.5, "max_output_tokens": 9}
    body = answer(parsed(tools=[WEATHER], **fields), choice)
    response = Response.model_validate(body)

    assert (response.status, [item.type for item in response.output]) == (status, kinds)
    assert response.output_text == choice.text
    assert (response.incomplete_details is not None) == (status == "incomplete")
    assert {name: body[name] for name in fields} == fields
    assert (body["store"], body["service_tier"], body["tools"]) == (False, "default", [WEATHER])
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 2, 5)
    assert answer(parsed(tools=[WEATHER], **fields), choice) == body, "it is the same at every attempt"


COMPLETED = "response.completed"
MESSAGE_BEGINS = ["response.output_item.added", "response.content_part.added"]
MESSAGE_ENDS = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
CALL_EVENTS = [
    "response.output_item.added",
    *["response.function_call_arguments.delta"] * 2,
    "response.function_call_arguments.done",
    "response.output_item.done",
]


TEXT = "response.output_text.delta"
THOUGHT_EVENTS = [
    *MESSAGE_BEGINS,
    *["response.reasoning_text.delta"] * 2,
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def sent(request: ResponsesRequest, body: JsonObject, pieces: Sequence[Piece], calls: Sequence[Any]) -> Any:
    """The events of a streamed answer, its thought letter by letter, each call in two pieces."""
    events = Responses().events(request, HEAD)
    (thought,) = Responses().reasoning(body)
    sent = [*events.opening(), *(event for letter in thought for event in events.reasoning(0, letter))]
    sent = [*sent, *(event for piece in pieces for event in events.piece(0, piece))]
    for index, call in enumerate(calls):
        for start, text in ((True, "{"), (False, "}")):
            sent += events.call_piece(0, CallPiece(index, call["function"]["name"], text, start, call["id"]))
    return [*sent, *events.closing(0, body), *events.ending(body)]


@pytest.mark.parametrize(
    ("pieces", "choice", "kinds"),
    [
        (["he", "llo"], Choice("hello", "stop"), [*MESSAGE_BEGINS, TEXT, TEXT, *MESSAGE_ENDS, COMPLETED]),
        ([], Choice("", "length"), [*MESSAGE_BEGINS, *MESSAGE_ENDS, "response.incomplete"]),
        ([], Choice("", "tool_calls", calls=[CALLED]), [*CALL_EVENTS, COMPLETED]),
        (
            ["So:"],
            Choice("So:", "tool_calls", calls=[CALLED]),
            [*MESSAGE_BEGINS, TEXT, *MESSAGE_ENDS, *CALL_EVENTS, COMPLETED],
        ),
        ([], Choice("", "tool_calls", calls=[CALLED, CALLED]), [*CALL_EVENTS, *CALL_EVENTS, COMPLETED]),
        (
            ["7"],
            Choice("7", "stop", reasoning="hm"),
            [*THOUGHT_EVENTS, *MESSAGE_BEGINS, TEXT, *MESSAGE_ENDS, COMPLETED],
        ),
        ([], Choice("", "length", reasoning="hm"), [*THOUGHT_EVENTS, "response.incomplete"]),
        (
            [],
            Choice("", "tool_calls", calls=[CALLED], reasoning="hm"),
            [*THOUGHT_EVENTS, *CALL_EVENTS, COMPLETED],
        ),
    ],
)
def test_events_come_in_order_and_are_numbered(pieces, choice, kinds):
    request = parsed(stream=True)
    body = answer(request, choice)
    events = sent(request, body, [*map(Piece, pieces)], choice.calls)
    data = [json.loads(event.data) for event in events]

    assert [event.type for event in events] == ["response.created", "response.in_progress", *kinds]
    assert [event["type"] for event in data] == [event.type for event in events]
    assert [event["sequence_number"] for event in data] == [*range(len(events))]
    assert data[0]["response"]["output"] == []
    assert data[-1]["response"] == body
    done = [event["item"] for event in data if event["type"] == "response.output_item.done"]
    assert done == body["output"]
    places = [event["output_index"] for event in data if event["type"] == "response.output_item.done"]
    assert places == [*range(len(done))]


def test_log_probabilities_without_text_begin_no_message():
    """The tokens of a call leave no text, and the answer then has no message."""
    token = {"token": "<tool_call>", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    request = parsed(stream=True, top_logprobs=1, include=["message.output_text.logprobs"])
    body = answer(request, Choice("", "tool_calls", calls=[CALLED]))

    events = sent(request, body, [Piece("", {"content": [token]})], [CALLED])

    kinds = ["response.created", "response.in_progress", *CALL_EVENTS, COMPLETED]
    assert [event.type for event in events] == kinds


@pytest.mark.parametrize(("type", "code"), [("server_error", "server_error"), ("other", "invalid_prompt")])
def test_a_failure_is_an_event(type, code):
    error = {"error": {"message": "It broke.", "type": type, "param": None, "code": "model_error"}}
    events = Responses().events(parsed(), HEAD)
    (failed,) = (json.loads(event.data) for event in events.failed(error))
    (broken,) = (json.loads(event.data) for event in events.interrupted(error))

    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": code, "message": "It broke."}
    assert (broken["type"], broken["code"], broken["message"]) == ("error", "model_error", "It broke.")
