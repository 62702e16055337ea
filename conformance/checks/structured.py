"""Chats whose answer is held to a JSON schema, or to the call of a function."""

import json
from functools import partial
from typing import Any, Final

import openai

from conformance.expectations import (
    NotOffered,
    expect,
    expect_equal,
    expect_id,
    expect_list,
    expect_refusal,
    shown,
)
from conformance.registry import Area
from conformance.session import PROMPT, Session

AREA = Area("structured", "POST", "/chat/completions")
TOKENS_MAX: Final = 240  # a model that was never trained on JSON writes much white space
CHUNKS_MAX: Final = 2000
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"even": {"type": "boolean"}},
    "required": ["even"],
    "additionalProperties": False,
}
INVALID: Final = {"type": "no-such-type"}
FUNCTION: Final = {"name": "record", "description": "Record it.", "parameters": SCHEMA, "strict": True}
TOOL: Final = {"type": "function", "function": FUNCTION}
CHOICE: Final = {"type": "function", "function": {"name": "record"}}
CALL: Final = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "record", "arguments": '{"even": true}'},
}


@AREA.add("a strict JSON schema is kept")
def schema(session: Session) -> None:
    answer = session.chat(response_format=_format(SCHEMA), max_tokens=TOKENS_MAX)
    expect_even(answer.choices[0].message.content, "response_format json_schema")


@AREA.add("a strict JSON schema is kept by a stream")
def schema_streamed(session: Session) -> None:
    chunks = _chunks(session.chat(response_format=_format(SCHEMA), max_tokens=TOKENS_MAX, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    expect_even(text, "a stream with response_format json_schema")


@AREA.add("a schema that is none, and an unknown format, are refused with their place")
def schema_invalid(session: Session) -> None:
    for wrong in (_format(INVALID), {"type": "no_such_format"}):
        refusal = expect_refusal(partial(session.chat, response_format=wrong), f"the format {shown(wrong)}")
        expect(
            str(refusal.param).startswith("response_format"),
            f"refuses a wrong response_format with the param {shown(refusal.param)}",
            "names response_format",
        )


@AREA.add("a function that is chosen is called, with arguments of its schema")
def tool_called(session: Session) -> None:
    _expect_call(session.chat(tools=[TOOL], tool_choice=CHOICE, max_tokens=TOKENS_MAX))


@AREA.add("tool_choice required calls a function")
def tool_required(session: Session) -> None:
    answer = session.chat(
        tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=TOKENS_MAX
    )
    _expect_call(answer)


@AREA.add("a call is streamed in deltas that add up, and ends with its own finish reason")
def tool_streamed(session: Session) -> None:
    chunks = _chunks(session.chat(tools=[TOOL], tool_choice=CHOICE, max_tokens=TOKENS_MAX, stream=True))
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    expect(bool(deltas), "streams no tool_calls for a chosen function", "streams them")
    expect_id(deltas[0].id, "the first delta of a call with the id")
    names = "".join(delta.function.name or "" for delta in deltas)
    expect_equal(names, "record", "a streamed tool call with the function's name")
    expect_even("".join(delta.function.arguments or "" for delta in deltas), "a streamed call of a function")


@AREA.add("a call and its result go back as messages")
def tool_result(session: Session) -> None:
    messages = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "recorded"},
    ]
    try:
        answer = session.chat(messages=messages)
    except openai.BadRequestError as refusal:
        if refusal.code == "unsupported_parameter":
            raise NotOffered(f"{session.chat_model} takes no calls: {shown(refusal.message)}") from refusal
        raise
    expect_equal(answer.object, "chat.completion", "a chat with the result of a call with the object")


@AREA.add("a function without a name, and the choice of an unknown one, are refused")
def tool_wrong(session: Session) -> None:
    nameless = {"type": "function", "function": {"parameters": SCHEMA}}
    expect_refusal(lambda: session.chat(tools=[nameless]), "a function without a name")
    other = {"type": "function", "function": {"name": "no_such_function"}}
    expect_refusal(lambda: session.chat(tools=[TOOL], tool_choice=other), "the choice of an unknown function")


def expect_even(text: object, what: str) -> None:
    """The text is an object of SCHEMA."""
    try:
        answer = json.loads(str(text))
    except ValueError:
        answer = None
    is_kept = isinstance(answer, dict) and set(answer) == {"even"} and isinstance(answer["even"], bool)
    expect(is_kept, f"answers {what} with {shown(text)}", "answers JSON of the schema")


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _chunks(stream: Any) -> list[Any]:
    chunks = [chunk for chunk, _ in zip(stream, range(CHUNKS_MAX + 1), strict=False)]
    stream.close()
    expect(len(chunks) <= CHUNKS_MAX, f"streams {CHUNKS_MAX} chunks and more", "ends a stream")
    return chunks


def _expect_call(answer: Any) -> None:
    [choice] = expect_list(answer.choices, "a chat with the choices")
    calls = expect_list(choice.message.tool_calls, "a chat that must call with tool_calls")
    expect(len(calls) == 1, f"answers {len(calls)} calls", "answers one")
    expect_id(calls[0].id, "a tool call with the id")
    expect_equal(calls[0].type, "function", "a tool call with the type")
    expect_equal(calls[0].function.name, "record", "a tool call with the function's name")
    expect_even(calls[0].function.arguments, "the call of a strict function")
