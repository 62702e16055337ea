"""Requests become the engine's, and its outputs answers."""

from dataclasses import replace
from typing import Any

import pytest

from nightshift import endpoints
from nightshift.endpoints.texts.chat import Chat, ChatRequest
from nightshift.endpoints.texts.completions import CompletionRequest, Completions
from nightshift.errors import InvalidRequest
from nightshift.jobs.priorities import PriorityClass
from nightshift_engine import Output, SamplingParams, TokenLogprobs
from tests.unit.workers.scripted import chat_body
from workers.serving.inference import (
    Identity,
    SamplingDefaults,
    TextAnswer,
    choice_seed,
    refusal,
    sampling_params,
)


def chat(**fields: Any) -> ChatRequest:
    request = endpoints.get("/v1/chat/completions").parse(chat_body("hello", **fields))
    assert isinstance(request, ChatRequest)
    return request


def sampling(defaults: SamplingDefaults | None = None, **fields: Any) -> SamplingParams:
    return sampling_params(chat(**fields), 7, defaults or SamplingDefaults())


def test_a_request_that_says_nothing_is_sampled_as_at_openai() -> None:
    assert sampling() == SamplingParams(temperature=1.0, seed=7)


def test_what_a_request_says_reaches_the_engine() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
    }
    lists = {"stop": ["a", "b"], "stop_token_ids": [4], "logit_bias": {"5": -100}}

    assert sampling(**fields, **lists, max_completion_tokens=9, max_tokens=2) == SamplingParams(
        **fields, stop=("a", "b"), stop_token_ids=(4,), logit_bias={5: -100}, max_tokens=9
    )


def test_where_a_request_is_silent_the_models_own_configuration_speaks() -> None:
    def defaults(**config: Any) -> SamplingDefaults:
        return SamplingDefaults.from_generation_config(config)

    sampled = defaults(do_sample=True, temperature=0.6, top_k=20)
    assert (sampling(sampled).temperature, sampling(sampled).top_k) == (0.6, 20)
    assert sampling(sampled, temperature=0.0).temperature == 0.0
    assert sampling(defaults(do_sample=False, top_k=50)).temperature == 0, "it is greedy"


def test_a_field_the_engine_refuses_is_named() -> None:
    with pytest.raises(InvalidRequest) as refused:
        sampling(min_tokens=5, max_tokens=2)
    assert refused.value.param == "min_tokens"
    assert refusal(refused.value).status_code == 400


def test_a_rows_ids_and_seed_are_the_same_at_every_attempt_and_differ_between_rows() -> None:
    first, again, other = Identity("job/0/1", 5), Identity("job/0/1", 5), Identity("job/0/2", 5)

    assert first.id("chatcmpl-") == again.id("chatcmpl-") != other.id("chatcmpl-")
    assert first.id("chatcmpl-").removeprefix("chatcmpl-") != first.id("req_").removeprefix("req_")
    assert first.seed == again.seed != other.seed
    assert 0 <= first.seed < 2**63


def output(text: str, ids: list[int], reason: Any = None, error: str | None = None) -> Output:
    return Output("x", text, ids, reason, 3, len(ids), 1, error)


class Letters:
    """A tokenizer whose tokens are bytes; 256 is special."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == 256 else bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id == 256


def an_answer(request: Any, endpoint: Any = None) -> TextAnswer:
    return TextAnswer(endpoint or Chat(), request, Identity("n", 5), Letters(), PriorityClass.STANDARD)


def test_outputs_add_up_to_one_answer() -> None:
    answer = an_answer(chat())

    assert answer.take(0, output("he", [1])).result is None
    final = answer.take(0, output("llo", [2, 3], "length"))

    assert final.result is not None
    assert final.result.values == {
        "text": "hello",
        "finish_reason": "length",
        "tool_calls": None,
        "reasoning": None,
    }
    assert final.result.body is None  # the values say it all
    assert (final.result.usage.prompt_tokens, final.result.usage.completion_tokens) == (3, 3)


def test_logprobs_of_half_characters_are_escaped_and_an_ending_token_left_out() -> None:
    request = chat(logprobs=True, top_logprobs=1)
    answer = an_answer(request)
    ids = [*"é".encode(), 256]
    logprobs = [TokenLogprobs(-0.5, (65,), (-0.1,)), TokenLogprobs(float("-inf"), (256,), (-0.2,))]

    first = answer.take(0, replace(output("", ids[:1]), logprobs=logprobs[:1]))
    second = answer.take(0, replace(output("é", ids[1:2]), logprobs=logprobs[1:]))
    last = answer.take(
        0, replace(output("", ids[2:], "stop"), logprobs=[TokenLogprobs(0.0)], end_token_id=256)
    )

    assert last.result is not None
    assert last.result.body is not None
    content = last.result.body["choices"][0]["logprobs"]["content"]
    assert [first.logprobs, second.logprobs, last.logprobs] == [
        {"content": content[:1], "refusal": None},
        {"content": content[1:], "refusal": None},
        None,
    ]
    assert [entry["token"] for entry in content] == ["\\xc3", "\\xa9"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert [entry["logprob"] for entry in content] == [-0.5, -9999.0]
    assert content[1]["top_logprobs"] == [
        {"token": "<end>", "logprob": -0.2, "bytes": list(b"<end>")},
    ]


def test_a_completions_logprobs_count_characters() -> None:
    request = endpoints.get("/v1/completions").parse(
        {"model": "demo", "prompt": "x", "logprobs": 1, "max_tokens": 4}
    )
    assert isinstance(request, CompletionRequest)
    answer = an_answer(request, Completions())
    ids = [*"aéb".encode()]
    done = replace(output("aéb", ids, "length"), logprobs=[TokenLogprobs(-0.5, (97,), (-0.5,)) for _ in ids])

    final = answer.take(0, done).result

    assert final is not None
    assert final.body is not None
    assert final.body["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-0.5] * 4,
        "top_logprobs": [
            {"a": -0.5},
            *({"a": -0.5, token: -0.5} for token in ("bytes:\\xc3", "bytes:\\xa9", "b")),
        ],
        "text_offset": [0, 1, 1, 2],
    }


def test_choices_draw_from_seeds_of_their_own() -> None:
    seeds = [choice_seed(7, choice) for choice in range(100)]

    assert seeds[0] == 7
    assert len({*seeds, *(choice_seed(8, choice) for choice in range(100))}) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_sequence_the_engine_gave_up_is_a_failure_with_its_reason() -> None:
    progress = an_answer(chat()).take(0, output("", [], "abort", "not finite"))

    assert (progress.result, progress.failed) == (None, "not finite")
