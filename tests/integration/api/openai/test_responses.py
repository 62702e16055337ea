"""POST /v1/responses with the official client, whole and streamed."""

from typing import Any

import openai
import pytest

from nightshift.endpoints.answers import error_body
from nightshift.jobs import Answer, OnlineClaim, Usage
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker, text_answer


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


def test_a_streamed_thought_is_an_item_before_the_message(client, worker):
    worker.behave = lambda worker, claim: worker.think(claim, ["I ", "add."], "Seven.")
    with client.responses.stream(model=CHAT_MODEL, input="x") as stream:
        events = list(stream)
        response = stream.get_final_response()

    thought, message = response.output
    assert (thought.type, message.type) == ("reasoning", "message")
    assert thought.content[0].text == "I add."
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == "I add."
    assert response.output_text == "Seven."
    assert response.usage.output_tokens_details.reasoning_tokens == 5


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
