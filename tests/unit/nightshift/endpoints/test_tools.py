"""Tools: what a request offers, and the calls that are read out of an answer's text."""

import json
import random
from typing import Any

import pytest

from nightshift import endpoints
from nightshift.endpoints.chat import Chat, ChatRequest
from nightshift.endpoints.generation import Choice, Conversation
from nightshift.endpoints.tools import ContentStream, Tools, read_calls
from nightshift.errors import InvalidRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def deep_list(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def parsed(**fields: Any) -> ChatRequest:
    request = endpoints.get("/v1/chat/completions").parse(CHAT | fields)
    assert isinstance(request, ChatRequest)
    return request


def call_text(name: str = "f", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "none", "tools": []}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"tools": {}}, "tools"),
        ({"tools": [tool()] * 129}, "tools"),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool(description="a" * 2**19)]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [tool(), tool("a b")]}, "tools[1].function.name"),
        ({"tools": [tool(description=3)]}, "tools[0].function.description"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(strict=True, parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        (
            {"tools": [tool(strict=True, parameters={"properties": {"a": {"not": {}}}})]},
            "tools[0].function.parameters.properties.a.not",
        ),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": tool("other")}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [tool()], "guided_regex": "a"}, "guided_regex"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_tools_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(**fields)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "must_call", "names", "is_parallel"),
    [
        ({}, False, ["f", "g"], True),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, False, ["f", "g"], False),
        ({"tool_choice": "required"}, True, ["f", "g"], True),
        ({"tool_choice": tool("g")}, True, ["g"], False),
    ],
)
def test_a_choice_says_which_tools_an_answer_calls(
    fields: dict[str, Any], must_call: bool, names: list[str], is_parallel: bool
) -> None:
    tools = parsed(tools=[tool(), tool("g")], **fields).callable_tools

    assert tools is not None
    assert (tools.must_call, list(tools.callable), tools.is_parallel) == (must_call, names, is_parallel)


def test_tools_that_may_not_be_called_are_not_shown_to_the_model() -> None:
    request = parsed(tools=[tool()], tool_choice="none")

    assert (request.callable_tools, request.guidance) == (None, None)
    assert request.prompt_given.tools == ()


def test_calls_and_their_results_go_to_the_template() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "3", "tool_call_id": "c1"}
    prompt = parsed(messages=[*CHAT["messages"], answer, result], tools=[tool()]).prompt_given

    assert isinstance(prompt, Conversation)
    assert prompt.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert prompt.messages[2] == result
    assert prompt.tools == [tool()]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "["}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "user", "content": "a", "tool_calls": [{}]}, "messages[0]"),
    ],
)
def test_wrong_calls_in_messages_are_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(messages=[message])

    assert refused.value.param == param


@pytest.mark.parametrize("field", ["tools", "guided_json"])
def test_what_is_nested_too_deep_is_refused_by_name(field: str) -> None:
    schema = {"default": deep_list(10_000)}
    value = schema if field == "guided_json" else [tool(parameters=schema)]
    with pytest.raises(InvalidRequest) as refused:
        parsed(**{field: value})

    assert refused.value.param == field


def test_arguments_may_be_nested_deep() -> None:
    arguments = '{"a": ' + "[" * 400 + "]" * 400 + "}"
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "tool_calls": [call]}

    assert parsed(messages=[message]).text_chars > 0


TOOLS = Tools([tool(), tool("g")], ["f", "g"], must_call=False, is_parallel=True)
ONE = Tools([tool()], ["f"], must_call=False, is_parallel=False)


@pytest.mark.parametrize(
    ("text", "tools", "content", "calls"),
    [
        ("plain", TOOLS, "plain", []),
        (call_text(a=1), TOOLS, "", [("f", {"a": 1})]),
        ("Sure.\n" + call_text(a="</tool_call>"), TOOLS, "Sure.\n", [("f", {"a": "</tool_call>"})]),
        (
            call_text(a="<tool_call>") + call_text("g"),
            TOOLS,
            "",
            [("f", {"a": "<tool_call>"}), ("g", {})],
        ),
        (call_text() + "bye", TOOLS, "", [("f", {})]),
        (call_text() + "\n" + call_text(b=2), ONE, "", [("f", {})]),
        (call_text("other"), TOOLS, call_text("other"), []),
        (call_text(a=1)[:-4], TOOLS, call_text(a=1)[:-4], []),
        ("<tool_call>nonsense</tool_call>", TOOLS, "<tool_call>nonsense</tool_call>", []),
        ("<tool_call>" + "[" * 100_000, TOOLS, "<tool_call>" + "[" * 100_000, []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_calls_are_read_out_of_a_text(
    text: str, tools: Tools, content: str, calls: list[tuple[str, Any]]
) -> None:
    said = read_calls(text, tools)

    assert (said.content, list(said.calls)) == (content, calls)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_streamed_is_always_the_beginning_of_the_content(seed: int) -> None:
    rng = random.Random(seed)
    parts = [" " * 700, "  ", "\n", "Sure", "<tool", "_call>", "<", call_text(a=1), "end"]
    text = "".join(rng.choices(parts, k=8))
    stream, sent, at = ContentStream(), "", 0
    while at < len(text):
        size = rng.randint(1, 9)
        sent += stream.push(text[at : at + size])
        at += size

    assert read_calls(text, TOOLS).content.startswith(sent)


def test_an_answer_with_calls_has_the_shape_of_openai() -> None:
    chat = Chat()
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    shown = chat.choice_json(Choice("", "tool_calls", calls=[call]))

    assert shown["message"]["content"] is None
    assert shown["message"]["tool_calls"] == [call]
    assert chat.chunk_calls(shown) == [
        {"delta": {"tool_calls": [{"index": 0, **call, "function": {"name": "f", "arguments": ""}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}},
    ]


@pytest.mark.parametrize("field", ["tools", "tool_choice", "parallel_tool_calls"])
def test_completions_have_no_tools(field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        endpoints.get("/v1/completions").parse({"model": "m", "prompt": "p", field: [tool()]})

    assert refused.value.param == field
