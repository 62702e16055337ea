"""POST /v1/chat/completions and /v1/completions with the official client, whole and streamed."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from nightshift.endpoints.structured.calls import CallPart, call_id
from nightshift.jobs import OnlineClaim
from nightshift.jobs.json_text import LARGE_BYTES
from tests.integration.api.asking import chat
from tests.integration.api.fake_worker import CHAT_MODEL, EMBEDDING_MODEL, FakeWorker, text_answer
from tests.integration.api.waiting import wait_until_nothing_is_owed

HINTS: dict[str, Any] = {
    "verbosity": "low",
    "reasoning_effort": "high",
    "prediction": {"type": "content", "content": "one"},
    "metadata": {"run": "nightly"},
    "modalities": ["text"],
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "user": "u",
}


def test_hints_that_ask_for_nothing_are_accepted(client, worker):
    answer = client.chat.completions.create(**chat("one"), **HINTS)
    options: Any = {"include_obfuscation": True}
    stream = client.chat.completions.create(**chat("one"), stream=True, stream_options=options, **HINTS)

    assert answer.choices[0].message.content == "one"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one"


@pytest.mark.parametrize("name", [name for name in HINTS if name != "modalities"])
def test_a_hint_of_a_wrong_type_is_refused_by_its_name(shared_client, name):
    with pytest.raises(openai.BadRequestError) as refused:
        shared_client.chat.completions.create(**chat("one"), extra_body={name: [7]})

    assert refused.value.param == name


@pytest.mark.parametrize("stream", [False, True])
def test_a_short_body_that_asks_for_a_long_answer_is_refused_before_it_is_queued(client, worker, stream):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**chat("1"), n=128, logprobs=True, top_logprobs=20, stream=stream)

    assert (refused.value.code, refused.value.param) == ("answer_too_large", "n")
    assert "'n' 128, 'max_completion_tokens' 512, 'top_logprobs' 20" in refused.value.message
    assert not worker.claims
    assert client.chat.completions.create(**chat("1"), n=3, logprobs=True, top_logprobs=20).choices


def test_a_job_with_one_request_is_refused_likewise(http, worker):
    body = chat("1", n=128, logprobs=True, top_logprobs=20)

    for path in ("/v1/jobs", "/v1/jobs?dry_run=true"):
        refused = http.post(path, json={"endpoint": "/v1/chat/completions", "body": body})

        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "answer_too_large"
        assert refused.json()["error"]["param"] == "body.n"


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("completions", {"model": CHAT_MODEL, "prompt": [1] * 513}, "prompt"),
        ("completions", {"model": CHAT_MODEL, "prompt": [[1], [1] * 513]}, "prompt[1]"),
        ("embeddings", {"model": EMBEDDING_MODEL, "input": [1] * 513}, "input"),
        ("embeddings", {"model": EMBEDDING_MODEL, "input": [[1], [1] * 513]}, "input"),
    ],
)
def test_more_token_ids_than_the_context_has_are_refused_before_they_are_queued(
    http, worker, route, fields, param
):
    job = {"endpoint": f"/v1/{route}", "body": fields}
    for path, body, at in (
        (f"/v1/{route}", fields, param),
        ("/v1/jobs", job, f"body.{param}"),
        ("/v1/jobs?dry_run=true", job, f"body.{param}"),
    ):
        refused = http.post(path, json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", at)
        assert "maximum context length is 512 tokens" in error["message"]
        assert "has 513 tokens" in error["message"]
    assert not worker.claims


def test_a_large_answer_is_the_same_whole_streamed_and_among_the_results(client, http, worker):
    text = "".join(f"wörd{number:0100} " for number in range(1_800))
    worker.behave = lambda worker, claim: worker.record(claim, text_answer(claim, text))
    request: Any = chat("1", logprobs=True, top_logprobs=2)

    whole = client.chat.completions.with_raw_response.create(**request)
    stream = list(client.chat.completions.create(**request, stream=True))
    chunks = [chunk.choices[0] for chunk in stream]
    job_id = http.get("/v1/jobs").json()["data"][0]["id"]
    [row] = http.get(f"/v1/jobs/{job_id}/results").json()["data"]

    assert len(whole.content) > 2 * LARGE_BYTES
    choice = whole.parse().choices[0]
    assert choice.message.content == text == "".join(chunk.delta.content or "" for chunk in chunks)
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content or ()]
    assert streamed == choice.logprobs.content
    assert {chunk.id for chunk in stream} == {row["response"]["body"]["id"]}
    assert row["response"]["body"]["choices"] == json.loads(whole.content)["choices"]


def test_a_conversation_of_too_many_messages_is_refused_in_openais_words(client, worker):
    messages: list[Any] = [{"role": "user", "content": "1"}] * 2048
    wrong: list[Any] = [{"role": "nobody"}] * 953
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=CHAT_MODEL, messages=messages + wrong)

    assert (refused.value.code, refused.value.param) == ("array_above_max_length", "messages")
    assert "maximum length 2048, but got an array with length 3001 instead" in refused.value.message
    assert client.chat.completions.create(model=CHAT_MODEL, messages=messages).choices


def choices_of(chunks: list[Any], index: int) -> list[Any]:
    """The pieces of one choice of a streamed answer."""
    return [choice for chunk in chunks for choice in chunk.choices if choice.index == index]


def test_several_choices_come_whole_and_streamed(client, worker):
    request: dict[str, Any] = chat("one two three", n=2)
    whole = client.chat.completions.create(**request)
    chunks = list(
        client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )

    texts = [(choice.index, choice.message.content) for choice in whole.choices]
    assert texts == [(0, "one two three"), (1, "one two three")]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 6)
    for index in (0, 1):
        mine = choices_of(chunks, index)
        assert mine[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in mine) == "one two three"
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert chunks[-1].usage == whole.usage


def test_several_prompts_are_completed_in_order_whole_and_streamed(client, worker):
    wanted: dict[str, Any] = {"model": CHAT_MODEL, "prompt": ["one", "two three", "four"], "n": 2}
    whole = client.completions.create(**wanted)
    chunks = list(client.completions.create(**wanted, stream=True, stream_options={"include_usage": True}))

    expected = ["one", "one", "two three", "two three", "four", "four"]
    assert [(choice.index, choice.text) for choice in whole.choices] == [*enumerate(expected)]
    for index, text in enumerate(expected):
        mine = choices_of(chunks, index)
        assert "".join(choice.text for choice in mine) == text
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert chunks[-1].usage == whole.usage


def test_one_wrong_prompt_refuses_the_request_by_its_place(shared_client):
    with pytest.raises(openai.BadRequestError) as refused:
        shared_client.completions.create(model=CHAT_MODEL, prompt=["a", "b", "c", 7])

    assert refused.value.param == "prompt[3]"


def test_a_chats_logprobs_have_the_official_shape_whole_and_streamed(client, worker):
    request: dict[str, Any] = chat("one two", n=2)
    request |= {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True))

    for choice in whole.choices:
        assert [entry.token for entry in choice.logprobs.content] == ["one", " two"]
        assert choice.logprobs.content[0].bytes == list(b"one")
        assert choice.logprobs.content[0].logprob == -0.25
        tops = [(top.token, top.logprob) for top in choice.logprobs.content[0].top_logprobs]
        assert tops == [("one", -0.25), ("ONE", -1.5)]
        pieces = [piece.logprobs for piece in choices_of(chunks, choice.index) if piece.logprobs]
        assert [entry for piece in pieces for entry in piece.content or []] == choice.logprobs.content


def test_a_completions_logprobs_have_the_official_shape_whole_and_streamed(client, worker):
    request: dict[str, Any] = {"model": CHAT_MODEL, "prompt": "one two", "logprobs": 1, "n": 2}
    whole = client.completions.create(**request)
    chunks = list(client.completions.create(**request, stream=True))

    for choice in whole.choices:
        assert choice.logprobs.tokens == ["one", " two"]
        assert choice.logprobs.token_logprobs == [-0.25, -0.25]
        assert choice.logprobs.top_logprobs == [{"one": -0.25}, {" two": -0.25}]
        assert choice.logprobs.text_offset == [0, 3]
        streamed = choices_of(chunks, choice.index)
        pieces = [piece.logprobs for piece in streamed if piece.logprobs is not None]
        assert [token for piece in pieces for token in piece.tokens or []] == choice.logprobs.tokens
        assert all(piece.tokens for piece in pieces)
        assert len(streamed) == len(pieces), "no chunk is without log-probabilities"
        assert [piece.finish_reason for piece in streamed] == [None, "stop"]
        assert [at for piece in pieces for at in piece.text_offset or []] == choice.logprobs.text_offset


@pytest.mark.parametrize(
    ("fields", "priority", "tier"),
    [
        ({}, "interactive", "priority"),
        ({"service_tier": "auto"}, "interactive", "priority"),
        ({"service_tier": "default"}, "standard", "default"),
        ({"service_tier": "scale"}, "standard", "default"),
        ({"service_tier": "flex"}, "background", "flex"),
        ({"extra_body": {"priority": "background"}, "service_tier": "priority"}, "background", "flex"),
    ],
)
def test_the_service_tier_chooses_the_class_and_the_answer_names_the_one_used(
    client, worker, fields, priority, tier
):
    answer = client.chat.completions.create(**chat("x"), **fields)

    assert worker.claims[-1].job.priority == priority
    assert answer.service_tier == tier


def test_arguments_are_streamed_before_the_answer_is_whole(client, worker):
    pieces = ['{"a"', ": ", "1}"]
    shown: list[threading.Event] = [threading.Event() for _ in pieces]

    def answer_slowly(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "So:", 0)
        at = 0
        for piece, event in zip(pieces, shown, strict=True):
            worker.stream_call(claim, CallPart(0, "f", 3, at, piece))
            at += len(piece)
            assert event.wait(30)  # the client has it
        answer = text_answer(claim, "So:")
        (choice,) = answer.body["choices"]
        call = {"type": "function", "function": {"name": "f", "arguments": "".join(pieces)}}
        ids = [call_id(answer.body["id"], 0, index) for index in (0, 1)]
        choice["message"]["tool_calls"] = [call | {"id": id} for id in ids]
        choice["finish_reason"] = "tool_calls"
        worker.record(claim, answer)

    worker.behave = answer_slowly
    tools: list[Any] = [{"type": "function", "function": {"name": "f"}}]
    stream = client.chat.completions.create(**chat("x"), tools=tools, stream=True)
    deltas: list[Any] = []
    for chunk in stream:
        for delta in chunk.choices[0].delta.tool_calls or ():
            deltas.append(delta)
            if delta.function.arguments in pieces:
                shown[pieces.index(delta.function.arguments)].set()

    assert [delta.index for delta in deltas] == [0, 0, 0, 0, 1, 1]
    assert [delta.function.arguments for delta in deltas] == ["", *pieces, "", "".join(pieces)]
    assert [bool(delta.id) for delta in deltas] == [True, False, False, False, True, False]
    assert [delta.function.name for delta in deltas] == ["f", None, None, None, "f", None]


@pytest.mark.parametrize("loses", [(), (1,), (2,)], ids=str)
def test_a_thought_is_streamed_before_the_answer_and_whole_whatever_is_lost(client, worker, loses):
    worker.behave = lambda worker, claim: worker.think(claim, ["I ", "add ", "both."], "Seven.", loses=loses)
    stream = client.chat.completions.create(**chat("x"), stream=True, stream_options={"include_usage": True})
    deltas, usage = [], None
    for chunk in stream:
        deltas += [choice.delta.to_dict() for choice in chunk.choices]
        usage = chunk.usage or usage

    told = [(delta.get("reasoning_content", ""), delta.get("content") or "") for delta in deltas]
    assert "".join(thought for thought, _ in told) == "I add both."
    assert "".join(text for _, text in told) == "Seven."
    assert [delta.get("reasoning") for delta in deltas] == [
        delta.get("reasoning_content") for delta in deltas
    ]
    last_of_thought = max(n for n, (thought, _) in enumerate(told) if thought)
    assert not any(text for _, text in told[:last_of_thought])
    assert usage is not None
    assert usage.completion_tokens_details.reasoning_tokens == 5


def test_the_worker_gets_the_body_as_it_was_sent(client, worker):
    client.chat.completions.create(**chat("x"), extra_body={"top_k": 5, "something_new": {"a": [1]}})

    assert worker.claims[-1].body["something_new"] == {"a": [1]}
    assert worker.claims[-1].body["top_k"] == 5


def test_text_beyond_ascii_and_line_separators_survive_a_stream(client, worker):
    text = "zwölf\u2028Boxkämpfer\n\njagen 🥊 \x85 end"
    stream = client.chat.completions.create(**chat(text), stream=True)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


def test_many_requests_at_once_each_get_their_own_answer(client, worker):
    def answer(number: int) -> str | None:
        return client.chat.completions.create(**chat(f"number {number}")).choices[0].message.content

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(answer, range(48)))

    assert answers == [f"number {number}" for number in range(48)]


def test_a_chat_request_rings_once_and_leaves_the_outbox_empty(client, worker, store):
    client.chat.completions.create(**chat("x"))

    wait_until_nothing_is_owed(store)
    assert len(worker.claims) == 1
