"""Stored responses with the official client: in the background, read, followed, gone on from, deleted."""

import itertools
import threading
from dataclasses import replace
from typing import Any

import openai
import pytest
import redis

from api.app import create_app
from nightshift.broker.token_streams import _key, connection_url
from nightshift.jobs import OnlineClaim
from nightshift.jobs.files import JobPart
from nightshift.process.settings import ApiSettings
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker, text_answer
from tests.integration.api.serving import serving

LONG = "one two three four"


def background(client: openai.OpenAI, input: Any = LONG, **fields: Any) -> Any:
    return client.responses.create(model=CHAT_MODEL, input=input, background=True, **fields)


def followed(client: openai.OpenAI, id: str, **fields: Any) -> list[Any]:
    """The events of a stored response, to its end."""
    return [*client.responses.retrieve(id, stream=True, **fields)]


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_background_response_is_accepted_at_once_and_read_when_it_is_done(client, worker):
    may_answer = threading.Event()

    def wait(worker: FakeWorker, claim: OnlineClaim) -> None:
        assert may_answer.wait(30)
        worker.echo(claim)

    worker.behave = wait
    accepted = background(client, metadata={"run": "1"})
    waiting = client.responses.retrieve(accepted.id)
    may_answer.set()
    ended = followed(client, accepted.id)[-1].response
    read = client.responses.retrieve(accepted.id)

    assert (accepted.status, accepted.background, accepted.output) == ("queued", True, [])
    assert waiting.status in ("queued", "in_progress")
    assert (read.status, read.output_text, read.background) == ("completed", LONG, True)
    assert read.id == ended.id == accepted.id
    assert read.metadata == {"run": "1"}
    assert read.model_extra is not None
    assert read.model_extra["store"] is True


def test_a_background_request_waits_behind_chats_unless_it_says_otherwise(client, worker):
    followed(client, background(client).id)
    followed(client, background(client, service_tier="priority").id)

    assert [claim.job.priority for claim in worker.claims] == ["standard", "interactive"]


def test_a_stream_of_a_background_response_goes_on_from_any_event(client, worker):
    created = list(background(client, stream=True))
    id = created[0].response.id
    numbers = [event.sequence_number for event in created]

    assert text_of(created) == LONG
    assert numbers == sorted(set(numbers))
    assert created[-1].type == "response.completed"
    assert created[-1].response.background is True
    again = followed(client, id)
    assert [(event.type, event.sequence_number) for event in again] == [
        *zip([e.type for e in created], numbers, strict=True)
    ]
    for number, event in zip(numbers, created, strict=True):
        rest = followed(client, id, starting_after=number)
        seen = text_of([e for e in created if e.sequence_number <= event.sequence_number])
        assert seen + text_of(rest) == LONG
        assert all(other.sequence_number > number for other in rest)


def test_what_was_read_of_a_stream_that_redis_lost_is_not_sent_again(client, worker, valkey):
    created = list(background(client, stream=True))
    id, shard_id = created[0].response.id, worker.claims[-1].lease.shard_id
    with redis.Redis.from_url(connection_url(valkey.settings.redis_url)) as connection:
        connection.delete(_key(shard_id))
    deltas = [event for event in created if event.type == "response.output_text.delta"]

    for seen in range(1, len(deltas) + 1):
        rest = followed(client, id, starting_after=deltas[seen - 1].sequence_number)
        assert "".join(delta.delta for delta in deltas[:seen]) + text_of(rest) == LONG
        assert rest[-1].sequence_number == created[-1].sequence_number


def test_a_client_that_leaves_a_background_stream_stops_nothing(client, worker):
    has_left = threading.Event()

    def wait(worker: FakeWorker, claim: OnlineClaim) -> None:
        assert has_left.wait(30)
        worker.echo(claim)

    worker.behave = wait
    with background(client, stream=True) as stream:
        id = next(iter(stream)).response.id
    has_left.set()

    assert text_of(followed(client, id)) == LONG


def test_a_response_is_stored_unless_the_request_says_otherwise(client, worker):
    stored = client.responses.create(model=CHAT_MODEL, input="one")
    read = client.responses.retrieve(stored.id)
    unstored = client.responses.create(model=CHAT_MODEL, input="one", store=False)

    assert read == stored
    assert (stored.background, read.output_text) == (False, "one")
    with pytest.raises(openai.NotFoundError, match=r"Response with id 'resp_.*' not found"):
        client.responses.retrieve(unstored.id)


def test_a_conversation_goes_on_from_a_stored_response(client, worker):
    first = client.responses.create(model=CHAT_MODEL, input="one", instructions="Be brief.")
    second = client.responses.create(
        model=CHAT_MODEL, input=[{"role": "user", "content": "two"}], previous_response_id=first.id
    )
    third = client.responses.create(model=CHAT_MODEL, input="three", previous_response_id=second.id)
    client.responses.delete(first.id)
    client.responses.delete(second.id)

    assert (second.previous_response_id, second.output_text) == (first.id, "two")
    items = worker.claims[-1].body["input"]
    texts = [
        item["content"] if isinstance(item["content"], str) else item["content"][0]["text"] for item in items
    ]
    assert [(item["role"], text) for item, text in zip(items, texts, strict=True)] == [
        ("user", "one"),
        ("assistant", "one"),
        ("user", "two"),
        ("assistant", "two"),
        ("user", "three"),
    ]
    assert "instructions" not in worker.claims[-1].body, "they are not carried over"
    newest = client.responses.input_items.list(third.id, limit=2)
    assert [item.role for item in newest.data] == ["user", "assistant"]
    assert newest.has_more
    oldest_first = [*client.responses.input_items.list(third.id, order="asc", limit=2)]
    assert [item.content[0].text for item in oldest_first] == texts
    assert len({item.id for item in oldest_first}) == 5


def test_items_that_a_client_gives_the_same_id_are_listed_to_the_last(client, worker):
    texts = ["one", "two", "three", "four"]
    items = [
        {"type": "message", "role": "user", "content": text, "id": id}
        for text, id in zip(texts, ["same", "same", 5, None], strict=True)
    ]
    stored = client.responses.create(model=CHAT_MODEL, input=items)  # type: ignore[arg-type]

    listed = client.responses.input_items.list(stored.id, order="asc", limit=1)
    pages = [*itertools.islice(listed, len(texts) + 1)]
    assert [item.content[0].text for item in pages] == texts
    assert pages[0].id == "same"
    assert len({item.id for item in pages}) == len(texts)


def test_a_wrong_item_is_named_by_its_own_place_in_a_conversation(client, worker):
    first = client.responses.create(model=CHAT_MODEL, input="one")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(
            model=CHAT_MODEL,
            input=[{"role": "user", "content": "x"}, {"type": "shell_call"}],  # type: ignore[list-item]
            previous_response_id=first.id,
        )
    assert refused.value.param == "input[1].type"


def test_a_deleted_response_is_found_no_more(client, worker):
    stored = client.responses.create(model=CHAT_MODEL, input="one")
    client.responses.delete(stored.id)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(stored.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(stored.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=CHAT_MODEL, input="two", previous_response_id=stored.id)
    assert (refused.value.param, refused.value.code) == (
        "previous_response_id",
        "previous_response_not_found",
    )


def test_a_response_of_another_tenant_is_found_by_none_of_the_routes(client, client_of, worker):
    stored = background(client)
    followed(client, stored.id)
    other = client_of("other")

    for look in (
        lambda: other.responses.retrieve(stored.id),
        lambda: other.responses.retrieve(stored.id, stream=True),
        lambda: other.responses.cancel(stored.id),
        lambda: other.responses.delete(stored.id),
        lambda: other.responses.input_items.list(stored.id),
    ):
        with pytest.raises(openai.NotFoundError):
            look()
    with pytest.raises(openai.BadRequestError, match="Previous response with id"):
        other.responses.create(model=CHAT_MODEL, input="x", previous_response_id=stored.id)
    assert client.responses.retrieve(stored.id).status == "completed"


def test_a_background_response_can_be_cancelled_and_a_synchronous_one_cannot(client, worker):
    is_running = threading.Event()

    def run_on(worker: FakeWorker, claim: OnlineClaim) -> None:
        is_running.set()
        worker.stream_until_told_to_stop(claim)

    worker.behave = run_on
    running = background(client)
    assert is_running.wait(30)
    with pytest.raises(openai.ConflictError):
        client.responses.delete(running.id)
    cancelled = client.responses.cancel(running.id)
    events = followed(client, running.id)

    assert cancelled.status == client.responses.retrieve(running.id).status == "cancelled"
    assert client.responses.cancel(running.id).status == "cancelled"
    assert events[-1].type == "response.failed"
    worker.behave = FakeWorker.echo
    synchronous = client.responses.create(model=CHAT_MODEL, input="one")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(synchronous.id)


def test_a_background_response_that_fails_says_why(client, worker):
    worker.behave = lambda worker, claim: worker.refuse(claim, 400, "no")
    failed = background(client)
    events = followed(client, failed.id)
    read = client.responses.retrieve(failed.id)

    assert events[-1].type == "response.failed"
    assert read.status == "failed"
    assert read.error is not None
    assert (read.error.code, read.error.message) == ("invalid_prompt", "This cannot be answered.")
    with pytest.raises(openai.BadRequestError, match="has the status 'failed'"):
        client.responses.create(model=CHAT_MODEL, input="x", previous_response_id=failed.id)


def test_calls_of_a_stored_response_are_answered_in_the_next_request(client, worker):
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def calls(worker: FakeWorker, claim: OnlineClaim) -> None:
        answer = text_answer(claim, "x")
        answer.body["output"] = [
            {
                "id": "fc_1",
                "type": "function_call",
                "call_id": "call_1",
                "name": "f",
                "arguments": "{}",
                "status": "completed",
            }
        ]
        worker.record(claim, answer)

    worker.behave = calls
    first: Any = client.responses.create(model=CHAT_MODEL, input="one", tools=[tool])
    worker.behave = FakeWorker.echo
    result: Any = {"type": "function_call_output", "call_id": "call_1", "output": "7"}
    second = client.responses.create(
        model=CHAT_MODEL, input=[result], previous_response_id=first.id, tools=[tool]
    )

    assert second.output_text == "7"
    assert call["id"] == first.output[0].call_id


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"background": "yes"}, "background"),
        ({"store": 1}, "store"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"previous_response_id": "resp_\u0000"}, "previous_response_id"),
        ({"previous_response_id": "job_5"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_by_name(shared_client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        shared_client.responses.create(model=CHAT_MODEL, input="x", extra_body=fields)
    assert refused.value.param == param


def test_a_stream_goes_on_from_a_number_of_a_background_response_only(client, worker):
    stored = client.responses.create(model=CHAT_MODEL, input="one")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(stored.id, stream=True)
    assert refused.value.param == "stream"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(stored.id, extra_query={"starting_after": 3})
    assert refused.value.param == "starting_after"


def test_a_row_of_a_job_goes_on_from_no_response(http):
    for field, value in (("background", True), ("store", True), ("previous_response_id", "resp_1")):
        body = {"model": CHAT_MODEL, "input": "x", field: value}
        refused = http.post("/v1/jobs", json={"endpoint": "/v1/responses", "body": body})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == f"body.{field}"


def test_a_response_whose_time_is_over_is_found_no_more(client, worker, store):
    stored = client.responses.create(model=CHAT_MODEL, input="one")
    job_id = f"job_{stored.id.removeprefix('resp_')}"
    with store.transaction() as tx:
        tx.deletions.mark([job_id], JobPart.RESULTS, tx.now())
        tx.deletions.delete_bodies([job_id])

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(stored.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=CHAT_MODEL, input="two", previous_response_id=stored.id)
    assert refused.value.code == "previous_response_not_found"


def test_a_conversation_is_no_longer_than_a_body_may_be(settings, make_key, worker):
    small = replace(settings, api=ApiSettings(body_bytes_max=3000))
    with serving(create_app(small)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=make_key()) as client:
        first = client.responses.create(model=CHAT_MODEL, input="one " * 500)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=CHAT_MODEL, input="two", previous_response_id=first.id)

    assert (refused.value.param, refused.value.code) == ("previous_response_id", "request_too_large")
    assert len(worker.claims) == 1
