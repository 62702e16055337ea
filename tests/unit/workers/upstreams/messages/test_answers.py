"""Answers in the shapes of many servers, as their documentation has them, become ours."""

import json
from typing import Any

import pytest

from nightshift.endpoints.results import Origin, Result
from nightshift.jobs import JsonObject, Usage
from tests.unit.workers.upstreams.messages.test_bodies import HI, inference
from workers.serving.inference import Progress
from workers.upstreams.faults import RowRefused
from workers.upstreams.messages.answers import NoAnswer, StreamedAnswer, read_answer

CHAT: JsonObject = {"messages": HI}
TOOLS: JsonObject = CHAT | {"tools": [{"type": "function", "function": {"name": "weather"}}]}
LOGPROBS: JsonObject = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}


def chat(message: JsonObject, finish_reason: Any = "stop", **of_choice: Any) -> JsonObject:
    """An upstream's answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"id": "x", "object": "chat.completion", "choices": [choice | of_choice]}


def calling(**function: Any) -> JsonObject:
    return {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}


def result_of(endpoint_name: str, request: JsonObject, answer: Any) -> Result:
    return read_answer(inference(endpoint_name, request), json.dumps(answer).encode())


def answered(endpoint_name: str, request: JsonObject, answer: Any) -> JsonObject:
    """The body that the client gets."""
    prepared = inference(endpoint_name, request)
    result = read_answer(prepared, json.dumps(answer).encode())
    origin = Origin(prepared.identity, prepared.request.model, prepared.priority)
    return prepared.endpoint.body_of(origin, result)


@pytest.mark.parametrize(
    ("answer", "text", "finish_reason"),
    [
        (chat({"content": "a"}), "a", "stop"),
        (chat({"content": "a"}, "length"), "a", "length"),
        (chat({"content": "a"}, "content_filter"), "a", "content_filter"),  # OpenAI, Azure
        (chat({"content": None}, "content_filter"), "", "content_filter"),
        (chat({"content": None, "refusal": "I cannot."}), "I cannot.", "content_filter"),  # OpenAI
        (chat({"content": "a"}, "model_length"), "a", "length"),  # Mistral
        (chat({"content": "a"}, "MAX_TOKENS"), "a", "length"),  # Gemini
        (chat({"content": "a"}, "eos_token"), "a", "stop"),  # TGI
        (chat({"content": "a"}, "end_turn"), "a", "stop"),  # Anthropic
        (chat({"content": "a"}, "something new"), "a", "stop"),
        (chat({"content": "a"}, None), "a", "stop"),
        (chat({}), "", "stop"),
        ({"id": "x", "choices": []}, "", "content_filter"),  # Gemini
        (
            chat(
                {
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]},
                        {"type": "text", "text": "a"},
                    ]
                }
            ),  # Mistral
            "a",
            "stop",
        ),
    ],
)
def test_an_answer_has_its_text_and_the_reason_of_its_end(
    answer: JsonObject, text: str, finish_reason: str
) -> None:
    (choice,) = answered("chat", CHAT, answer)["choices"]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == finish_reason


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource"])
def test_an_answer_that_its_server_gave_up_is_no_answer(reason: str) -> None:
    with pytest.raises(NoAnswer, match=reason):
        result_of("chat", CHAT, chat({"content": "half"}, reason))


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": None, "id": "x"},
        {"choices": [None]},
        {"choices": [{"index": 0}]},
        chat({"content": 7}),
        chat({"content": [7]}),
        chat({"content": "", "tool_calls": [{}]}),
        [],
        "text",
    ],
)
def test_what_is_no_answer_is_told_from_one(answer: Any) -> None:
    with pytest.raises(NoAnswer):
        result_of("chat", CHAT, answer)


@pytest.mark.parametrize(
    "name", ["reasoning_content", "reasoning"]
)  # vLLM, DeepSeek, SGLang; OpenRouter, vLLM
def test_a_thought_is_parted_from_the_answer(name: str) -> None:
    answer = chat({"content": "a", name: "hm"})
    (choice,) = answered("chat", CHAT, answer)["choices"]
    assert choice["message"]["reasoning_content"] == "hm"
    (hidden,) = answered("chat", CHAT | {"include_reasoning": False}, answer)["choices"]
    assert "reasoning_content" not in hidden["message"]


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}])  # OpenAI; Ollama
@pytest.mark.parametrize("finish_reason", ["tool_calls", "stop", "function_call"])
def test_calls_have_text_as_arguments_and_their_reason(arguments: Any, finish_reason: str) -> None:
    body = answered("chat", TOOLS, chat(calling(name="weather", arguments=arguments), finish_reason))
    (choice,) = body["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert choice["finish_reason"] == "tool_calls"


def test_a_call_of_a_function_in_the_old_form_is_answered_in_it() -> None:
    request = CHAT | {"functions": [{"name": "weather"}]}
    body = answered("chat", request, chat(calling(name="weather", arguments="{}"), "tool_calls"))
    (choice,) = body["choices"]
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": "{}"}
    assert choice["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, Usage()),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, Usage(3, 2)),
        ({"prompt_tokens": 3, "completion_tokens": None}, Usage(3)),
        (
            {
                "prompt_tokens": 3,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(3, 5, 2, 4),
        ),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(3)),
    ],
)
def test_usage_is_what_the_upstream_tells(usage: Any, counted: Usage) -> None:
    assert result_of("chat", CHAT, chat({"content": "a"}) | {"usage": usage}).usage == counted


def test_choices_come_in_their_order_with_their_log_probabilities() -> None:
    choices = [
        {"index": 1, "message": {"content": "b"}, "finish_reason": "stop", "logprobs": None},
        {"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "logprobs": LOGPROBS},
    ]
    body = answered("chat", CHAT | {"n": 2, "logprobs": True}, {"choices": choices})
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "b"]
    assert [choice["logprobs"] for choice in body["choices"]] == [LOGPROBS, None]


def test_an_upstream_that_makes_fewer_choices_ends_the_row_and_is_not_at_fault() -> None:
    with pytest.raises(RowRefused, match="1 choices, not with 3") as refused:
        result_of("chat", CHAT | {"n": 3}, chat({"content": "a"}))
    assert refused.value.param == "n"


def test_scores_of_a_chats_prompt_are_beside_its_choices() -> None:
    scored = [None, {"5": {"logprob": -1.0, "rank": 1, "decoded_token": "a"}}]
    answer = chat({"content": "a"}) | {"prompt_logprobs": scored}
    assert answered("chat", CHAT | {"prompt_logprobs": 0}, answer)["prompt_logprobs"] == scored


def test_a_response_is_made_from_a_chat() -> None:
    request = {"input": "Hi", "tools": [{"type": "function", "name": "weather"}]}
    message = calling(name="weather", arguments="{}") | {"content": "a", "reasoning": "hm"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    body = answered("responses", request, chat(message, "tool_calls") | {"usage": usage})
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    assert body["output"][1]["content"][0]["text"] == "a"
    assert body["usage"]["input_tokens"] == 3
    assert body["status"] == "completed"


def test_a_response_that_is_cut_off_is_incomplete() -> None:
    body = answered("responses", {"input": "Hi"}, chat({"content": "a"}, "length"))
    assert body["status"] == "incomplete"


def streamed(
    request: JsonObject, *deltas: JsonObject, endpoint_name: str = "chat"
) -> tuple[list[Progress], Result]:
    """Deltas of the only choice, which then ends."""
    answer = StreamedAnswer(inference(endpoint_name, request | {"stream": True}))
    ends = [None] * (len(deltas) - 1) + ["stop"]
    chunks: list[JsonObject] = [
        {"choices": [{"delta": delta, "finish_reason": end}]} for delta, end in zip(deltas, ends, strict=True)
    ]
    chunks.insert(0, {"choices": [], "prompt_filter_results": []})  # Azure
    progress = [progress for chunk in chunks for progress in answer.take(chunk)]
    assert answer.is_whole
    return progress, answer.result()


def test_a_stream_joins_to_its_answer() -> None:
    progress, result = streamed(
        CHAT, {"role": "assistant", "content": None}, {"reasoning": "hm"}, {"content": "a"}
    )
    assert [(part.reasoning, part.text) for part in progress] == [("hm", ""), ("", "a")]
    assert (result.values["reasoning"], result.values["text"]) == ("hm", "a")


def test_token_ids_are_those_that_the_upstream_tells() -> None:
    request = CHAT | {"return_token_ids": True}
    whole = answered("chat", request, chat({"content": "ab"}, token_ids=[5, 6]) | {"prompt_token_ids": [1]})
    stream = StreamedAnswer(inference("chat", request | {"stream": True}))
    first = {"prompt_token_ids": [1], "choices": [{"delta": {"content": "a"}, "token_ids": [5]}]}
    last = {"choices": [{"delta": {"content": "b"}, "token_ids": [6], "finish_reason": "stop"}]}
    assert [part.text for chunk in (first, last) for part in stream.take(chunk)] == ["a", "b"]
    streamed_body = stream.result().body
    assert streamed_body is not None
    for body in (whole, streamed_body):
        assert (body["choices"][0]["token_ids"], body["prompt_token_ids"]) == ([5, 6], [1])


def test_an_upstream_that_tells_no_token_ids_ends_the_row_that_asks_for_them() -> None:
    with pytest.raises(RowRefused, match="tells no token ids") as refused:
        result_of("chat", CHAT | {"return_token_ids": True}, chat({"content": "a"}))
    assert refused.value.param == "return_token_ids"


def test_a_streamed_refusal_is_told_by_its_end() -> None:
    progress, result = streamed(CHAT, {"refusal": "I can"}, {"refusal": "not."})
    assert "".join(part.text for part in progress) == "I cannot."
    assert result.values["finish_reason"] == "content_filter"


@pytest.mark.parametrize("logprobs", [None, {"content": None, "refusal": []}, {"content": []}])
def test_a_streamed_response_may_lack_log_probabilities(logprobs: Any) -> None:
    request = {"input": "Hi", "include": ["message.output_text.logprobs"], "stream": True}
    answer = StreamedAnswer(inference("responses", request))
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": logprobs, "finish_reason": "stop"}
    (progress,) = answer.take({"choices": [choice]})
    assert not (progress.logprobs or {}).get("content")
    assert answer.result().values["text"] == "a"


def test_log_probabilities_that_nobody_asked_for_are_left_out() -> None:
    (choice,) = answered("chat", CHAT, chat({"content": "a"}, logprobs=LOGPROBS))["choices"]
    assert choice["logprobs"] is None


@pytest.mark.parametrize("index", [10**9, -1, "0"])
def test_a_call_with_an_impossible_number_is_no_answer(index: Any) -> None:
    with pytest.raises(NoAnswer):
        streamed(TOOLS, {"tool_calls": [{"index": index, "function": {"name": "weather"}}]})


@pytest.mark.parametrize(
    "calls",
    [
        [  # OpenAI
            {"index": 0, "id": "a", "function": {"name": "weather", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"city":'}},
            {"index": 0, "function": {"arguments": ' "Oslo"}'}},
        ],
        [{"id": "a", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],  # Gemini: no index
        [{"index": 0, "function": {"name": "weather", "arguments": {"city": "Oslo"}}}],  # Ollama
    ],
)
@pytest.mark.parametrize("endpoint_name", ["chat", "responses"])
def test_streamed_calls_join_to_theirs(endpoint_name: str, calls: list[JsonObject]) -> None:
    request = TOOLS
    if endpoint_name == "responses":
        request = {"input": "Hi", "tools": [{"type": "function", "name": "weather"}]}
    deltas = [{"tool_calls": [call]} for call in calls]
    progress, result = streamed(request, *deltas, endpoint_name=endpoint_name)
    parts = [part for told in progress for part in told.calls]
    assert {(part.index, part.name) for part in parts} == {(0, "weather")}
    assert "".join(part.text for part in parts) == '{"city": "Oslo"}'
    assert [part.offset for part in parts][-1] == len('{"city": "Oslo"}') - len(parts[-1].text)
    (call,) = json.loads(str(result.values["tool_calls"]))
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
