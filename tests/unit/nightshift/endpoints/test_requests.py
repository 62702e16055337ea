"""What a request may say, and how a refusal names the field that is wrong."""

from typing import Any

import pytest

from nightshift import endpoints
from nightshift.endpoints.completions import CompletionRequest
from nightshift.errors import InvalidRequest


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stream", "perhaps", "stream"),
        ("stream_options", 7, "stream_options"),
        ("stream_options", {"include_usage": []}, "stream_options.include_usage"),
        ("stop", [7], "stop[0]"),
        ("stop", 7, "stop"),
        ("prompt", [1, "a", None], "prompt[1]"),
        ("prompt", [-1], "prompt[0]"),
        ("prompt", [], "prompt"),
        ("prompt", {}, "prompt"),
        ("prompt", ["a", "b", "c", 7], "prompt[3]"),
        ("prompt", ["a", [1, "b"]], "prompt[1][1]"),
        ("prompt", [[1], []], "prompt[1]"),
        ("prompt", [[True]], "prompt[0][0]"),
        ("prompt", ["a"] * 129, "prompt"),
        ("echo", True, "echo"),
        ("best_of", 2, "best_of"),
        ("prompt", None, "prompt"),
        ("temperature", 10**400, "temperature"),
        ("logit_bias", {"5": 101}, "logit_bias.5"),
    ],
)
def test_a_refusal_names_the_field_as_the_caller_wrote_it(field: str, value: Any, param: str) -> None:
    body = {"model": "m", "prompt": "p", field: value}

    with pytest.raises(InvalidRequest) as refused:
        endpoints.get("/v1/completions").parse(body)

    assert refused.value.param == param
    assert f"'{param}'" in refused.value.message


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [3]], ["a", [3]]),
    ],
)
def test_a_prompt_is_text_or_tokens_or_a_list_of_them(prompt: Any, prompts: list[Any]) -> None:
    neutral = {"echo": False, "best_of": 1, "n": 2}
    request = endpoints.get("/v1/completions").parse({"model": "m", "prompt": prompt} | neutral)

    assert isinstance(request, CompletionRequest)
    assert request.prompts_given == prompts
    assert request.num_choices == 2 * len(prompts)


def test_all_choices_of_all_prompts_together_are_limited() -> None:
    with pytest.raises(InvalidRequest) as refused:
        endpoints.get("/v1/completions").parse({"model": "m", "prompt": ["a", "b"], "n": 65})

    assert refused.value.param == "n"


@pytest.mark.parametrize(
    "field",
    [
        "guided_whitespace_pattern",
        "chat_template_kwargs",
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_rather_than_ignored(field: str) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "a"}]}

    with pytest.raises(InvalidRequest) as refused:
        endpoints.get("/v1/chat/completions").parse(chat | {field: {"a": 1}})

    assert (refused.value.param, refused.value.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "assistant", "content": "", "function_call": {"name": "f"}}, "messages[0]"),
    ],
)
def test_a_message_that_would_lose_something_is_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        endpoints.get("/v1/chat/completions").parse({"model": "m", "messages": [message]})

    assert refused.value.param == param


def test_options_of_a_stream_need_a_stream() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream_options": {}}

    for stream in (None, False):
        with pytest.raises(InvalidRequest) as refused:
            endpoints.get("/v1/chat/completions").parse(chat | {"stream": stream})
        assert refused.value.param == "stream_options"
    assert endpoints.get("/v1/chat/completions").parse(chat | {"stream": True}).streams
