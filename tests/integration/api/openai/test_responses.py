"""POST /v1/responses with the official client: whole, streamed, parsed, with tools."""

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from nightshift.endpoints.answers import error_body
from nightshift.endpoints.responses import Responses
from nightshift.endpoints.structured.calls import CallPart, call_id
from nightshift.endpoints.texts.generation import Choice
from nightshift.jobs import Answer, OnlineClaim, Usage
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker, head_of, request_of, text_answer

TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
    {"id": "call_2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
]


def answer_with(claim: OnlineClaim, choice: Choice) -> Answer:
    usage = Usage(3, 2)
    return Answer(
        200, Responses().answer(request_of(claim), head_of(claim), choices=[choice], usage=usage), usage
    )


def test_a_response_is_answered_with_what_the_worker_recorded(client, worker):
    response = client.responses.create(model=CHAT_MODEL, input="one two three", instructions="Repeat.")

    assert response.output_text == "one two three"
    assert (response.status, response.object, response.model) == ("completed", "response", CHAT_MODEL)
    assert response.instructions == "Repeat."
    assert response.usage.output_tokens == 3


def test_hints_are_accepted_and_the_answer_says_what_was_done(client, worker):
    response = client.responses.create(
        model=CHAT_MODEL,
        input="one",
        truncation="auto",
        reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content", "web_search_call.action.sources"],
        prompt_cache_retention="24h",
        safety_identifier="s",
        store=False,
    )

    assert (response.output_text, response.truncation, response.safety_identifier) == ("one", "disabled", "s")
    assert response.text.verbosity == "low"


def test_a_streamed_response_is_accumulated_by_the_client_and_is_the_recorded_one(client, http, worker):
    with client.responses.stream(model=CHAT_MODEL, input=[{"role": "user", "content": "one two"}]) as stream:
        events = list(stream)
        response = stream.get_final_response()
    (line,) = http.get(f"/v1/jobs/{worker.claims[-1].job.id}/results").json()["data"]

    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [delta.delta for delta in deltas] == ["one", " two"]
    assert deltas[-1].snapshot == response.output_text == "one two"
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert response.id == line["response"]["body"]["id"]


def test_a_pydantic_model_is_parsed_whole_and_streamed(client, worker):
    class Person(BaseModel):
        name: str

    worker.behave = lambda worker, claim: worker.record(claim, text_answer(claim, '{"name": "Ada"}'))
    whole = client.responses.parse(model=CHAT_MODEL, input="x", text_format=Person)
    with client.responses.stream(model=CHAT_MODEL, input="x", text_format=Person) as stream:
        streamed = stream.get_final_response()

    assert whole.output_parsed == streamed.output_parsed == Person(name="Ada")


def test_calls_of_tools_come_as_items_and_go_back_with_their_results(client, worker):
    def call_tools(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "Let me", 0)
        worker.record(claim, answer_with(claim, Choice("Let me see.", "tool_calls", calls=CALLS)))

    worker.behave = call_tools
    with client.responses.stream(model=CHAT_MODEL, input="x", tools=[TOOL]) as stream:
        response = stream.get_final_response()
    worker.behave = FakeWorker.echo
    calls = [item for item in response.output if item.type == "function_call"]
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{call.name}: {number}"}
        for number, call in enumerate(calls)
    ]
    again: list[Any] = [{"role": "user", "content": "x"}, *response.output, *results]
    end = client.responses.create(model=CHAT_MODEL, input=again, tools=[TOOL])

    assert response.output_text == "Let me see."
    assert [(call.call_id, call.arguments) for call in calls] == [("call_1", '{"a": 1}'), ("call_2", "{}")]
    assert calls[0].parsed_arguments == {"a": 1}
    assert end.output_text == "f: 1"


def test_arguments_are_streamed_as_they_are_generated(client, worker):
    def call_slowly(worker: FakeWorker, claim: OnlineClaim) -> None:
        id = head_of(claim).id
        calls = [
            {"id": call_id(id, 0, n), "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            for n in (0, 1)
        ]
        worker.stream(claim, "So:", 0)
        for index, after in ((0, 3), (1, 8)):
            for at in range(0, 8, 2):
                worker.stream_call(claim, CallPart(index, "f", after, at, '{"a": 1}'[at : at + 2]))
        worker.record(claim, answer_with(claim, Choice("So:", "tool_calls", calls=calls)))

    worker.behave = call_slowly
    events = list(client.responses.create(model=CHAT_MODEL, input="x", tools=[TOOL], stream=True))

    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert len(deltas) > 2
    assert [event.arguments for event in done] == ['{"a": 1}'] * 2
    assert events[-1].type == "response.completed"
    assert items == events[-1].response.output
    assert [item.type for item in items] == ["message", "function_call", "function_call"]


def test_log_probabilities_come_whole_and_streamed(client, worker):
    wanted: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    whole = client.responses.create(model=CHAT_MODEL, input="one two", **wanted)
    events = list(client.responses.create(model=CHAT_MODEL, input="one two", stream=True, **wanted))

    (message,) = whole.output
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs is not None
    assert [(entry.token, entry.logprob) for entry in logprobs] == [("one", -0.25), (" two", -0.25)]
    streamed = [
        entry.token
        for event in events
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    assert streamed == ["one", " two"]


def test_an_answer_that_is_cut_off_is_incomplete(client, worker):
    worker.behave = lambda worker, claim: worker.record(claim, text_answer(claim, "one", "length"))
    wanted: dict[str, Any] = {"model": CHAT_MODEL, "input": "x", "max_output_tokens": 1}
    whole = client.responses.create(**wanted)
    events = list(client.responses.create(**wanted, stream=True))

    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == "one"


def test_a_failure_before_any_event_has_its_status_and_one_after_is_an_event(client, worker):
    worker.behave = lambda worker, claim: worker.refuse(claim, 400, "no")
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=CHAT_MODEL, input="x", stream=True)

    def break_off(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "one", 0)
        worker.record(
            claim, Answer(500, error_body("It broke.", "server_error", code="model_error"), Usage())
        )

    worker.behave = break_off
    events = list(client.responses.create(model=CHAT_MODEL, input="x", stream=True))

    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert (events[-1].response.error.code, events[-1].response.error.message) == (
        "server_error",
        "It broke.",
    )


def test_an_answer_that_comes_out_differently_ends_the_stream_with_an_error(client, worker):
    def change_its_mind(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "one", 0)
        worker.record(claim, text_answer(claim, "two"))

    worker.behave = change_its_mind
    events = list(client.responses.create(model=CHAT_MODEL, input="x", stream=True))

    assert events[-1].type == "error"
    assert events[-1].code == "stream_interrupted"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_served_is_refused_by_name(shared_client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        shared_client.responses.create(**({"model": CHAT_MODEL, "input": "x"} | fields))

    assert refused.value.param == param


def test_the_documentation_has_the_answers_type(shared_http):
    description = shared_http.get("/openapi.json").json()
    content = description["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
    schema = description["components"]["schemas"]["ResponseObject"]

    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ResponseObject"}
    assert {"id", "output", "usage", "status"} <= set(schema["required"])
    assert "text/event-stream" in content
