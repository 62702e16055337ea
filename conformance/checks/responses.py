"""POST /v1/responses: without stored state, or refusing by name what would need it."""

from functools import partial
from itertools import islice
from typing import Any, Final

import openai

from conformance.checks.batches import lines_of
from conformance.checks.structured import SCHEMA, TOKENS_MAX, expect_even
from conformance.expectations import (
    NotOffered,
    expect,
    expect_count,
    expect_equal,
    expect_id,
    expect_list,
    expect_refusal,
    shown,
)
from conformance.registry import Area
from conformance.session import PROMPT, Session, row_line

AREA = Area("responses", "POST", "/responses")
ENDPOINT: Final = "/v1/responses"
EVENTS_MAX: Final = 4000  # an answer has some hundred tokens: more is a stream that does not end
ENDINGS: Final = ("completed", "incomplete")
TOOL: Final = {"type": "function", "name": "record", "parameters": SCHEMA, "strict": True}
CHOICE: Final = {"type": "function", "name": "record"}
FORMAT: Final = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
NO_RESPONSE: Final = "resp_000000000000000000000000"


@AREA.add("a response to a text has its items, usage, and the client's output_text")
def answered(session: Session) -> None:
    _expect_response(_respond(session))


@AREA.add("input may be items, with instructions")
def items(session: Session) -> None:
    _expect_response(_respond(session, input=[_message("input_text")], instructions="Answer."))


@AREA.add("max_output_tokens ends a response as incomplete, and says so")
def incomplete(session: Session) -> None:
    response = _respond(session, max_output_tokens=16, input=f"{PROMPT} " * 8)
    _expect_response(response)
    reason = getattr(response.incomplete_details, "reason", None)
    expected = None if response.status == "completed" else "max_output_tokens"
    expect_equal(reason, expected, f"a response that is {response.status} with the reason")


@AREA.add("a stream has numbered events from response.created to the whole response")
def streamed(session: Session) -> None:
    events = _events(_respond(session, stream=True))
    numbers = [event.sequence_number for event in events]
    expect(
        numbers == list(range(len(events))), f"numbers its events {shown(numbers)}", "counts them from 0 on"
    )
    expect_equal(events[0].type, "response.created", "the first event with the type")
    whole = _whole(events)
    _expect_response(whole)
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    expect(
        deltas == whole.output_text,
        f"streams the text {shown(deltas)} and answers {shown(whole.output_text)}",
        "streams the text that it answers",
    )


@AREA.add("the client's own stream puts the same response together")
def stream_helper(session: Session) -> None:
    body = {"model": session.chat_model, "input": PROMPT, "max_output_tokens": 16}
    with session.client.responses.stream(**body) as stream:
        ended = list(islice(stream, EVENTS_MAX))[-1:]
        # The client puts no response together that reached its limit, as a model's may.
        is_cut_off = [event.type for event in ended] == ["response.incomplete"]
        _expect_response(ended[0].response if is_cut_off else stream.get_final_response())


@AREA.add("text.format keeps a strict JSON schema")
def text_format(session: Session) -> None:
    answer = _respond(session, text={"format": FORMAT}, max_output_tokens=TOKENS_MAX)
    expect_even(answer.output_text, "text.format json_schema")


@AREA.add("a function that is chosen is called, as an item")
def tool_called(session: Session) -> None:
    _expect_call(_call_tool(session))


@AREA.add("a call's arguments are streamed in deltas that add up")
def tool_streamed(session: Session) -> None:
    events = _events(_call_tool(session, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    expect_equal("".join(deltas), "".join(done), "the deltas of a call's arguments")
    call = _expect_call(_whole(events))
    expect_equal("".join(done), call.arguments, "the arguments of a streamed call")


@AREA.add("a call and its output go back as items")
def tool_result(session: Session) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "record", "arguments": '{"even": true}'}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "recorded"}
    try:
        answer = _respond(session, input=[_message("input_text"), call, output])
    except openai.BadRequestError as refusal:
        if refusal.code == "unsupported_parameter":
            raise NotOffered(f"{session.chat_model} takes no calls: {shown(refusal.message)}") from refusal
        raise
    _expect_response(answer)


@AREA.add("a request without input is refused")
def input_missing(session: Session) -> None:
    expect_refusal(
        lambda: session.client.post("/responses", cast_to=object, body={"model": session.chat_model}),
        "a response without input",
    )


@AREA.add("an item or a part of an unknown type is refused")
def item_unknown(session: Session) -> None:
    for wrong in ({"type": "no_such_item"}, _message("no_such_part")):
        expect_refusal(partial(_respond, session, input=[wrong]), f"the input {shown(wrong)}")


@AREA.add("an unknown previous_response_id is refused by name")
def previous_unknown(session: Session) -> None:
    expect_refusal(
        lambda: _respond(session, previous_response_id=NO_RESPONSE),
        "an unknown previous_response_id",
        openai.APIStatusError,
        param="previous_response_id",
    )


@AREA.add("store: true stores the response, or is refused by name")
def stored(session: Session) -> None:
    try:
        answer = _respond(session, store=True)
    except openai.BadRequestError as refusal:
        expect_equal(refusal.param, "store", "store=True with an error that has the param")
        return
    _forget_afterwards(session, answer)
    response = session.client.responses.retrieve(answer.id)
    expect_equal(response.id, answer.id, "a stored response that is asked for by its id with the id")


@AREA.add("background: true answers at once, or is refused by name")
def background(session: Session) -> None:
    try:
        answer = _respond(session, store=True, background=True)
    except openai.BadRequestError as refusal:
        is_named = refusal.param in ("background", "store")
        expect(is_named, f"refuses background with the param {shown(refusal.param)}", "names the field")
        return
    _forget_afterwards(session, answer)
    expect_equal(answer.background, True, "a background response with background")


@AREA.add("a batch of responses is completed", is_slow=True)
def batch(session: Session) -> None:
    session.require("GET", "/batches")
    body = {"model": session.chat_model, "input": PROMPT, "max_output_tokens": 16}
    file = session.upload(row_line("row-0", body, ENDPOINT))
    ended = session.wait_for_batch(session.create_batch(file.id, endpoint=ENDPOINT).id)
    expect_equal(ended.status, "completed", "a batch of a response with the status")
    [line] = lines_of(session, ended.output_file_id)
    answer = (line.get("response") or {}).get("body") or {}
    expect_equal(answer.get("object"), "response", "a line with response.body.object")


def _respond(session: Session, **fields: Any) -> Any:
    body = {"model": session.chat_model, "input": PROMPT, "max_output_tokens": 16, "store": False}
    return session.client.responses.create(**(body | fields))


def _forget_afterwards(session: Session, response: Any) -> None:
    id = expect_id(getattr(response, "id", None), "a response with the id")
    session.clean_up.add(id, lambda client: client.responses.delete(id))


def _call_tool(session: Session, **fields: Any) -> Any:
    return _respond(session, tools=[TOOL], tool_choice=CHOICE, max_output_tokens=TOKENS_MAX, **fields)


def _message(part: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": part, "text": PROMPT}]}


def _events(stream: Any) -> list[Any]:
    events = list(islice(stream, EVENTS_MAX + 1))
    stream.close()
    expect(0 < len(events) <= EVENTS_MAX, f"streams {len(events)} events or more", "streams some, and ends")
    return events


def _whole(events: list[Any]) -> Any:
    """The response in the last event."""
    kind = events[-1].type
    is_end = kind in ("response.completed", "response.incomplete")
    expect(is_end, f"ends a stream with the event {shown(kind)}", "ends it with response.completed")
    return events[-1].response


def _expect_response(response: Any) -> None:
    expect_id(getattr(response, "id", None), "a response with the id")
    expect_equal(response.object, "response", "a response with the object")
    expect(response.status in ENDINGS, f"answers the status {shown(response.status)}", "answers completed")
    output = expect_list(response.output, "a response with the output")
    messages = [item for item in output if item.type == "message"]
    expect(bool(messages), f"answers the items {shown([item.type for item in output])}", "has a message")
    expect_equal(messages[0].role, "assistant", "a message with the role")
    expect_id(response.output_text, "a response with the output_text")
    given = expect_count(getattr(response.usage, "input_tokens", None), "usage.input_tokens")
    made = expect_count(getattr(response.usage, "output_tokens", None), "usage.output_tokens")
    expect_equal(response.usage.total_tokens, given + made, "usage.total_tokens")


def _expect_call(response: Any) -> Any:
    """A response with one call of the tool. Returns it."""
    kinds = [item.type for item in expect_list(response.output, "a response with the output")]
    calls = [item for item in response.output if item.type == "function_call"]
    expect(len(calls) == 1, f"answers a chosen function with the items {shown(kinds)}", "has one call")
    [call] = calls
    expect_id(call.call_id, "a call with call_id")
    expect_equal(call.name, "record", "a call with the function's name")
    expect_even(call.arguments, "the call of a strict function")
    return call
