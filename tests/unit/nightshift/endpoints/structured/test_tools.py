"""Tools: what a request offers, and the calls that are read out of an answer's text."""

import json
import random
from functools import partial
from typing import Any

import pytest

from nightshift.endpoints.structured.calls import AnswerReader, read_calls
from nightshift.endpoints.structured.tools import Tools
from nightshift.endpoints.texts.chat import Chat
from nightshift.endpoints.texts.generation import Choice
from nightshift.endpoints.texts.streams import AnswerHead, CallPiece
from nightshift.jobs.priorities import PriorityClass
from tests.unit.nightshift.endpoints import parsing


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def allowed(mode: str, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def deep_list(depth: int) -> list[Any]:
    parts: list[Any] = []
    for _ in range(depth):
        parts = [parts]
    return parts


CHAT = "/v1/chat/completions"
parsed, refused = partial(parsing.parsed, CHAT), partial(parsing.refused, CHAT)


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
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [tool()], "tool_choice": allowed("none", tool())}, "tool_choice.allowed_tools.mode"),
        ({"tools": [tool()], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (
            {"tools": [tool()], "tool_choice": allowed("auto", {"type": "mcp"})},
            "tool_choice.allowed_tools.tools[0].type",
        ),
        (
            {"tools": [tool()], "tool_choice": allowed("auto", tool(), tool("other"))},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tool_choice": allowed("auto", tool())}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [tool()], "guided_regex": "a"}, "guided_regex"),
        ({"tools": [tool()], "tool_choice": "required", "guided_choice": ["a"]}, "guided_choice"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_tools_are_refused_by_name(fields, param):
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "must_call", "names", "is_parallel"),
    [
        ({}, False, ["f", "g"], True),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, False, ["f", "g"], False),
        ({"tool_choice": "required"}, True, ["f", "g"], True),
        ({"tool_choice": tool("g")}, True, ["g"], False),
        ({"tool_choice": allowed("auto", tool("g"))}, False, ["g"], True),
        ({"tool_choice": allowed("required", tool("g"), tool("f"))}, True, ["f", "g"], True),
        ({"tool_choice": allowed("required", tool()), "parallel_tool_calls": False}, True, ["f"], False),
    ],
)
def test_a_choice_says_which_tools_an_answer_calls(fields, must_call, names, is_parallel):
    tools = parsed(tools=[tool(), tool("g")], **fields).callable_tools

    assert (tools.must_call, list(tools.callable), tools.is_parallel) == (must_call, names, is_parallel)


def test_the_model_is_shown_all_tools_and_held_to_the_allowed_ones():
    request = parsed(tools=[tool(), tool("g")], tool_choice=allowed("required", tool("g")))

    assert request.prompts_given[0].tools == [tool(), tool("g")]
    allowed_names = [f'"name\\": \\"{name}' in request.guidance.text for name in "fg"]
    assert allowed_names == [False, True]


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
FLAT_FORM = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {"tools": [tool()], "response_format": FORM}),
        (CHAT, {"tools": [tool()], "guided_json": {"type": "object"}}),
        (
            "/v1/responses",
            {"tools": [tool()["function"] | {"type": "function"}], "text": {"format": FLAT_FORM}},
        ),
    ],
    ids=["response_format", "guided_json", "text.format"],
)
def test_a_form_beside_tools_is_that_of_an_answer_without_calls(route, body):
    def form_with(choice: Any) -> tuple[bool, bool]:
        request = parsing.parsed(route, **body, tool_choice=choice)
        kinds = {"json_schema": (False, True), "grammar": (True, "form:" in request.guidance.text)}
        return kinds[request.guidance.kind]

    named = tool() if route == CHAT else {"type": "function", "name": "f"}

    calls_or_form = {choice: form_with(choice) for choice in ("none", "auto", "required")}
    assert calls_or_form == {"none": (False, True), "auto": (True, True), "required": (True, False)}
    assert form_with(named) == (True, False)


def test_tools_that_may_not_be_called_are_not_shown_to_the_model():
    request = parsed(tools=[tool()], tool_choice="none")

    assert (request.callable_tools, request.guidance) == (None, None)
    assert request.prompts_given[0].tools == ()


def test_calls_and_their_results_go_to_the_template():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "3", "tool_call_id": "c1"}
    prompt = parsed(messages=[parsing.MESSAGE, answer, result], tools=[tool()]).prompts_given[0]

    assert prompt.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert prompt.messages[2] == result
    assert prompt.tools == [tool()]


def calling(**function: Any) -> dict[str, Any]:
    """An assistant's message with a call."""
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", **function}}]}


CALL = "messages[0].tool_calls[0]"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, f"{CALL}.function"),
        (calling(arguments=[1]), f"{CALL}.function.arguments"),
        (calling(arguments="[" + "{}," * 300_000), f"{CALL}.function.arguments"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "user", "content": "a", "tool_calls": [{}]}, "messages[0]"),
        ({"role": "tool", "content": "3"}, "messages[0]"),
    ],
)
def test_wrong_calls_in_messages_are_refused(message, param):
    assert refused(messages=[message]).param == param


NO_OBJECTS = ['{"city": "Os', "{", "[1]", "null", '"a"', "Oslo", "[" * 100_000, '{"city": "\ud83c"']


@pytest.mark.parametrize("text", NO_OBJECTS, ids=lambda text: text[:9])
def test_the_arguments_of_a_call_that_was_cut_off_go_back_as_text(text):
    """An agent sends them with every later request, with what its tool said of them."""
    (prompt,) = parsed(messages=[calling(arguments=text)], tools=[tool()]).prompts_given

    assert prompt.messages[0]["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize("field", ["tools", "guided_json"])
def test_what_is_nested_too_deep_is_refused_by_name(field):
    schema = {"default": deep_list(10_000)}
    value = schema if field == "guided_json" else [tool(parameters=schema)]
    assert refused(**{field: value}).param == field


def test_arguments_may_be_nested_deep():
    arguments = '{"a": ' + "[" * 400 + "]" * 400 + "}"
    assert parsed(messages=[calling(arguments=arguments)]).text_chars > 0


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
        (call_text(a=1)[:-14], TOOLS, "", [("f", {"a": 1})]),
        (call_text(a=1)[:30], TOOLS, call_text(a=1)[:30], []),
        ("So:" + call_text()[:12], TOOLS, "So:" + call_text()[:12], []),
        (call_text() + call_text()[:12], TOOLS, "", [("f", {})]),
        (call_text(a={"b": '}"\\'}), TOOLS, "", [("f", {"a": {"b": '}"\\'}})]),
        ("<tool_call>nonsense</tool_call>", TOOLS, "<tool_call>nonsense</tool_call>", []),
        ("<tool_call>" + "[" * 100_000, TOOLS, "<tool_call>" + "[" * 100_000, []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_calls_are_read_out_of_a_text(text, tools, content, calls):
    said = read_calls(text, tools)

    read = [(call.name, json.loads(call.arguments)) for call in said.calls]
    assert (said.content, read, all(call.is_whole for call in said.calls)) == (content, calls, True)


def test_a_call_that_is_cut_off_has_the_beginning_of_its_arguments():
    said = read_calls("So:" + call_text() + call_text("g", a="b")[:-18], TOOLS)

    assert said.content == "So:"
    assert [(call.name, call.arguments, call.is_whole) for call in said.calls] == [
        ("f", "{}", True),
        ("g", '{"a": ', False),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_streamed_makes_up_the_answer_however_it_is_divided(seed):
    rng = random.Random(seed)
    parts = [" " * 700, "  ", "\n", "Sure", "<tool", "_call>", "<", call_text(a='}"\\', b=[{}]), "end"]
    text = "".join(rng.choices(parts, k=8))[: rng.randint(0, 900)]
    reader, content, arguments = AnswerReader(TOOLS), "", list[str]()
    at = 0
    while at < len(text):
        size = rng.randint(1, 9)
        new = reader.push(text[at : at + size])
        at += size
        content += new.content
        for part in new.parts:
            before = arguments[part.index - 1] if part.index else content
            arguments += [""] if part.index == len(arguments) else []
            assert part.index == len(arguments) - 1
            assert (part.after, part.offset) == (len(before), len(arguments[-1]))
            arguments[-1] += part.text

    said = read_calls(text, TOOLS)
    assert said.content == content if said.calls else said.content.startswith(content)
    assert [call.arguments for call in said.calls] == arguments


def test_an_answer_with_calls_has_the_shape_of_openai():
    chat = Chat()
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    shown = chat.choice_json(Choice("", "tool_calls", calls=[call]))

    assert shown["message"]["content"] is None
    assert shown["message"]["tool_calls"] == [call]
    assert chat.chunk_call(CallPiece(0, "f", "{", is_first=True), "call_1") == [
        {"delta": {"tool_calls": [{"index": 0, **call, "function": {"name": "f", "arguments": ""}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}},
    ]
    assert chat.chunk_call(CallPiece(0, "f", "}", is_first=False), "call_1") == [
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}},
    ]


@pytest.mark.parametrize("field", ["tools", "tool_choice", "parallel_tool_calls"])
def test_completions_have_no_tools(field):
    assert parsing.refused("/v1/completions", **{field: [tool()]}).param == field


@pytest.mark.parametrize(("choice", "content"), [("auto", None), ("required", None), ("none", "")])
def test_a_stream_that_may_call_begins_without_content(choice, content):
    """An answer that only calls has none, and clients add up what the deltas have."""
    request = parsed(tools=[tool()], tool_choice=choice, stream=True)
    (opening,) = Chat().events(request, AnswerHead("c", 0, PriorityClass.STANDARD)).opening()

    assert json.loads(opening.data)["choices"][0]["delta"] == {"role": "assistant", "content": content}
