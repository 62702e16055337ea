"""An upstream gets each request whole: as it was given, or as the chat that it is."""

import json
from typing import Any

import pytest

from nightshift import endpoints
from nightshift.endpoints.results import Identity
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from workers.serving.model_server import Inference
from workers.upstreams.messages.bodies import check_request, route_of, upstream_body
from workers.upstreams.served import LIMITS, Engine, ServedModel

HI = [{"role": "user", "content": "Hi"}]
WEATHER: JsonObject = {"name": "weather", "parameters": {"type": "object"}}
TIME: JsonObject = {"name": "time", "parameters": {"type": "object"}}
SCHEMA: JsonObject = {"name": "s", "schema": {"type": "object"}, "strict": True}
PNG = "data:image/png;base64,iVBORw0="
IMAGE = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}


def inference(endpoint_name: str, body: JsonObject) -> Inference:
    endpoint = endpoints.named(endpoint_name)
    body = {"model": "here"} | body
    request = endpoint.parse(body)
    identity = Identity("row", 1)
    return Inference("row", endpoint, request, identity, PriorityClass.STANDARD, print, body=body)


def served(**fields: Any) -> ServedModel:
    engine = Engine("unknown", None)
    return ServedModel("here", "there", ModelKind.DECODER, frozenset(), 4096, None, engine, **fields)


def sent(endpoint_name: str, body: JsonObject, *, streams: bool = False, **of_model: Any) -> JsonObject:
    """The upstream's body without its model's name."""
    said = upstream_body(inference(endpoint_name, body), served(**of_model), streams=streams)
    assert said.pop("model") == "there"
    return said


@pytest.mark.parametrize(
    ("endpoint_name", "body"),
    [
        ("chat", {"messages": HI, "temperature": 0.5, "stop": "x", "seed": 7, "n": 2, "user": "me"}),
        ("chat", {"messages": HI, "logprobs": True, "top_logprobs": 3, "prompt_logprobs": 0}),
        ("chat", {"messages": HI, "guided_regex": "a+", "chat_template_kwargs": {"enable_thinking": False}}),
        ("chat", {"messages": HI, "structured_outputs": {"choice": ["a", "b"]}}),
        ("chat", {"messages": HI, "response_format": {"type": "json_schema", "json_schema": SCHEMA}}),
        ("chat", {"messages": HI, "unknown": {"to": "us"}, "mirostat": 2}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}]}),
        ("chat", {"messages": HI, "tools": [{"type": "function", "function": WEATHER}]}),
        ("completions", {"prompt": ["a", "b"], "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("chat", {"messages": HI, "allowed_token_ids": [3], "logprobs": True, "logprob_token_ids": [4]}),
        ("chat", {"messages": [{"role": "critic", "content": "Hi"}], "return_token_ids": True}),
        ("embeddings", {"messages": HI, "add_generation_prompt": True}),
        ("embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 4}),
        ("rerank", {"query": "q", "documents": ["a", "b"], "top_n": 1, "return_documents": True}),
        ("score", {"queries": "q", "documents": ["a", "b"]}),
        ("classify", {"input": ["a", "b"]}),
        ("moderations", {"input": ["a", "b"]}),
    ],
)
def test_what_is_asked_for_arrives_as_it_was_given(endpoint_name: str, body: JsonObject) -> None:
    ours = {"priority": "background", "service_tier": "flex", "metadata": {"a": "b"}}
    assert sent(endpoint_name, body | ours) == body


def test_a_completion_says_the_limit_that_it_has_by_default() -> None:
    assert sent("completions", {"prompt": "a"}) == {"prompt": "a", "max_tokens": 16}


@pytest.mark.parametrize("given", LIMITS)
@pytest.mark.parametrize("understood", LIMITS)
def test_a_limit_of_tokens_has_the_name_that_the_upstream_understands(given: str, understood: str) -> None:
    body = sent("chat", {"messages": HI, given: 9}, limit_field=understood)
    assert body == {"messages": HI, understood: 9}


@pytest.mark.parametrize(
    ("choice", "tool_choice"),
    [
        ({}, {}),
        ({"function_call": "auto"}, {"tool_choice": "auto"}),
        (
            {"function_call": {"name": "weather"}},
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        ),
    ],
)
def test_functions_are_offered_as_tools(choice: JsonObject, tool_choice: JsonObject) -> None:
    call = {"name": "weather", "arguments": "{}"}
    said = {"role": "assistant", "content": None, "function_call": call}
    result = {"role": "function", "name": "weather", "content": "rain"}
    body = sent("chat", {"messages": [*HI, said, result], "functions": [WEATHER], **choice})
    assert body == {
        "messages": [
            *HI,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_weather", "type": "function", "function": call}],
            },
            {"role": "tool", "name": "weather", "tool_call_id": "call_weather", "content": "rain"},
        ],
        "tools": [{"type": "function", "function": WEATHER}],
        "parallel_tool_calls": False,
        **tool_choice,
    }


RESPONSES: list[tuple[JsonObject, JsonObject]] = [
    ({"input": "Hi"}, {"messages": HI}),
    (
        {"input": "Hi", "instructions": "Be brief."},
        {"messages": [{"role": "system", "content": "Be brief."}, *HI]},
    ),
    (
        {"input": "Hi", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "odd": 1},
        {"messages": HI, "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "odd": 1},
    ),
    (
        {"input": "Hi", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}},
        {"messages": HI, "reasoning_effort": "low", "verbosity": "low"},
    ),
    (
        {"input": "Hi", "text": {"format": {"type": "json_schema", **SCHEMA}}},
        {"messages": HI, "response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    ),
    (
        {"input": "Hi", "text": {"format": {"type": "json_object"}}},
        {"messages": HI, "response_format": {"type": "json_object"}},
    ),
    (
        {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"messages": HI, "logprobs": True, "top_logprobs": 2},
    ),
    ({"input": "Hi", "truncation": "disabled", "store": False, "background": False}, {"messages": HI}),
]


@pytest.mark.parametrize(("body", "chat"), RESPONSES)
def test_a_response_is_asked_for_as_a_chat(body: JsonObject, chat: JsonObject) -> None:
    assert route_of(endpoints.named("responses")) == "/v1/chat/completions"
    assert sent("responses", body) == chat


@pytest.mark.parametrize(
    ("choice", "names", "said"),
    [
        (None, ["weather", "time"], "auto"),
        ("required", ["weather", "time"], "required"),
        ({"type": "function", "name": "time"}, ["time"], "required"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "time"}]},
            ["time"],
            "auto",
        ),
        ("none", [], None),
    ],
)
def test_a_responses_tools_are_a_chats(choice: Any, names: list[str], said: str | None) -> None:
    tools = [{"type": "function", **WEATHER}, {"type": "function", **TIME}]
    body = sent("responses", {"input": "Hi", "tools": tools, "tool_choice": choice})
    assert [tool["function"]["name"] for tool in body.get("tools", ())] == names
    assert body.get("tool_choice") == said


def test_a_responses_items_are_a_chats_messages() -> None:
    parts = [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"},
    ]
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
    result = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
    body = sent("responses", {"input": [{"role": "user", "content": parts}, call, result]})
    user, assistant, tool = body["messages"]
    assert user["content"] == [
        {"type": "text", "text": "Look:"},
        IMAGE,
        parts[2],
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
    ]
    assert assistant["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert (tool["role"], tool["tool_call_id"], tool["content"]) == ("tool", "c1", "rain")


def test_a_stream_is_asked_for_with_its_usage_and_a_rank_where_one_is_understood() -> None:
    body = sent("responses", {"input": "Hi", "stream": True}, streams=True, takes_priority=True)
    assert body["stream"]
    assert body["stream_options"] == {"include_usage": True}
    assert body["priority"] == 1


def check(endpoint_name: str, body: JsonObject, *, may_fetch: bool = False) -> None:
    prepared = inference(endpoint_name, body)
    check_request(body, prepared.request, may_fetch=may_fetch)


@pytest.mark.parametrize("name", ["api_base", "extra_body", "models", "bootstrap_host", "id_slot", "lora"])
def test_a_field_that_would_reach_what_is_not_the_tenants_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is not supported") as refusal:
        check("chat", {"messages": HI, name: "x"})
    assert refusal.value.param == name


ADDRESSES = ["https://example.com/a.png?key=secret", " HTTP://169.254.169.254/latest", "file:/etc/passwd"]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("field", [{"image_url": {"url": "?"}}, {"unknown": [{"at": "?"}]}])
def test_an_address_is_fetched_by_no_upstream_that_may_not(address: str, field: JsonObject) -> None:
    part = {"type": "image_url"} | json.loads(json.dumps(field).replace("?", address))
    body: JsonObject = {"messages": [{"role": "user", "content": [{"type": "text", "text": address}, part]}]}
    with pytest.raises(InvalidRequest, match="give the content itself, as a data URI") as refusal:
        check("chat", body)
    assert refusal.value.param == "messages"
    assert "secret" not in refusal.value.message
    check("chat", body, may_fetch=True)


@pytest.mark.parametrize("path", ["/etc/secret.png", "secret.jpg", "../video.mp4", "//10.0.0.1/a.png"])
@pytest.mark.parametrize("field", ["image_url", "video_url", "audio_url", "image", "video"])
@pytest.mark.parametrize("shape", [{"url": "?"}, "?", ["?"]])
def test_a_path_of_the_upstreams_machine_is_no_content(path: str, field: str, shape: Any) -> None:
    part = {"type": field, field: json.loads(json.dumps(shape).replace("?", path))}
    with pytest.raises(InvalidRequest, match="give the content itself, as a data URI"):
        check("chat", {"messages": [{"role": "user", "content": [part]}]})


def test_content_that_is_there_itself_is_passed_on() -> None:
    jpeg = "/9j/4AAQSkZJRgABAQ=="  # looks like a path
    parts = [
        IMAGE,
        {"type": "image_url", "image_url": "DATA:image/png;base64,AA"},
        {"type": "input_audio", "input_audio": {"data": jpeg, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
    ]
    check("chat", {"messages": [{"role": "user", "content": parts}]})


def test_an_address_in_a_text_is_a_text() -> None:
    said = {"role": "user", "content": [{"type": "text", "text": ADDRESSES[0]}, IMAGE]}
    check("chat", {"messages": [said, {"role": "user", "content": ADDRESSES[0]}]})
    check("embeddings", {"input": [ADDRESSES[0]]})


FILE = {"type": "input_file", "file_url": ADDRESSES[0]}


@pytest.mark.parametrize(
    ("endpoint_name", "body"),
    [
        ("embeddings", {"input": [{"image": ADDRESSES[0]}]}),
        ("embeddings", {"input": {"image": ADDRESSES[0]}}),
        ("responses", {"input": [{"role": "user", "content": [FILE]}]}),
        ("embeddings", {"messages": [{"role": "user", "content": [IMAGE | {"image_url": ADDRESSES[1]}]}]}),
    ],
)
def test_an_address_in_an_input_is_fetched_no_more(endpoint_name: str, body: JsonObject) -> None:
    with pytest.raises(InvalidRequest, match="data URI") as refusal:
        check(endpoint_name, body)
    assert refusal.value.param == ("messages" if "messages" in body else "input")
