"""The fields of requests, and refusals that name the field that is wrong."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from openai.types import completion_create_params
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from nightshift import endpoints
from nightshift.endpoints.parameters import KNOWN, Effort, hints_of, values_of
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.responses.request import MOVED
from nightshift.endpoints.texts.generation import MEDIA_CHARS
from nightshift.jobs.options import EFFORTS
from tests.unit.nightshift.endpoints.parsing import MESSAGE, parsed, refused


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stream", "perhaps", "stream"),
        ("stream_options", 7, "stream_options"),
        ("stream_options", {"include_usage": []}, "stream_options.include_usage"),
        ("stop", [7], "stop[0]"),
        ("logit_bias", {"x": 1}, "logit_bias.x"),
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
        ("best_of", 2, "best_of"),
        ("logprobs", 6, "logprobs"),
        ("n", -1, "n"),
        ("prompt", None, "prompt"),
        ("temperature", 10**400, "temperature"),
        ("logit_bias", {"5": 101}, "logit_bias.5"),
        ("allowed_token_ids", [], "allowed_token_ids"),
        ("allowed_token_ids", [3, -1], "allowed_token_ids[1]"),
        ("allowed_token_ids", [*range(1025)], "allowed_token_ids"),
        ("logprob_token_ids", [3], "logprob_token_ids"),
    ],
)
def test_a_refusal_names_the_field_as_the_caller_wrote_it(field, value, param):
    refusal = refused("/v1/completions", **{field: value})

    assert refusal.param == param
    assert f"'{param}'" in refusal.message


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
def test_a_prompt_is_text_or_tokens_or_a_list_of_them(prompt, prompts):
    request = parsed("/v1/completions", prompt=prompt, echo=False, best_of=1, n=2)

    assert request.prompts_given == prompts
    assert request.num_choices == 2 * len(prompts)


def test_all_choices_of_all_prompts_together_are_limited():
    assert refused("/v1/completions", prompt=["a", "b"], n=65).param == "n"


ROUTES = [endpoint.route for endpoint in endpoints.every()]


@pytest.mark.parametrize("route", ROUTES)
def test_what_another_server_would_do_is_refused_by_name_rather_than_ignored(route):
    request_type = endpoints.get(route).request_type
    for name in KNOWN.keys() - request_type.model_fields - {*request_type.other_names}:
        refusal = refused(route, **{name: "asks for something"})
        assert (refusal.param, refusal.code) == (name, "unsupported_parameter")
        assert name in refusal.message


@pytest.mark.parametrize("route", ROUTES)
def test_a_known_parameter_that_asks_for_nothing_is_accepted_everywhere(route):
    request_type = endpoints.get(route).request_type
    moved = MOVED if route == "/v1/responses" else {}
    for name in KNOWN.keys() - request_type.model_fields:
        neutral = request_type.neutral.get(name, KNOWN[name])
        for value in (None, *(neutral if name not in moved else ())):
            parsed(route, **{name: value})


def given(path: str, value: Any) -> dict[str, Any]:
    """A body's part in which a parameter has this value."""
    name, _, inner = path.partition(".")
    stream = {"stream": True} if name == "stream_options" else {}
    return {name: given(inner, value) if inner else value} | stream


OBJECTS: dict[str, Any] = {
    "metadata": {"run": "nightly"},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "as before"}]},
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
}
KINDS: dict[str, list[Any]] = {"a string": ["a", ""], "an integer": [1, 9], "`true`, `false`": [True, False]}


@pytest.mark.parametrize("route", ROUTES)
def test_a_parameter_without_effect_is_accepted_and_its_type_is_checked(route):
    paths = set()
    for path, field, _ in hints_of(endpoints.get(route).request_type):
        paths.add(path)
        values = values_of(field.annotation)
        known = [OBJECTS[path]] if path in OBJECTS else KINDS.get(values, re.findall("`(.*?)`", values))
        for value in (None, *known):
            parsed(route, **given(path, value))
        for wrong in (7.5, [5], "nothing of the kind" if "a string" not in values else {}):
            refusal = refused(route, **given(path, wrong))
            assert refusal.param == path
            assert path in refusal.message

    assert {"user", "metadata", "prompt_cache_key", "safety_identifier"} <= paths


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"metadata": {"run": 7}}, "metadata.run"),
        ({"prediction": {"type": "text", "content": "a"}}, "prediction.type"),
        (
            {"prediction": {"type": "content", "content": [{"type": "text", "text": 7}]}},
            "prediction.content[0].text",
        ),
    ],
)
def test_a_wrong_part_of_a_parameter_without_effect_is_named(fields, path):
    assert refused("/v1/chat/completions", **fields).param == path


def test_every_parameter_of_ours_is_known_to_the_endpoints_that_lack_it():
    common, ours = ModelRequest.model_fields.keys(), set[str]()
    for endpoint in endpoints.every():
        ours |= endpoint.request_type.model_fields.keys()

    assert ours - common <= KNOWN.keys()


@pytest.mark.parametrize(
    ("route", "parameters"),
    [
        ("/v1/chat/completions", CompletionCreateParamsBase),
        ("/v1/completions", completion_create_params.CompletionCreateParamsBase),
        ("/v1/responses", ResponseCreateParamsBase),
        ("/v1/embeddings", EmbeddingCreateParams),
    ],
)
def test_no_parameter_of_the_official_client_is_ignored(route, parameters):
    fields = endpoints.get(route).request_type.model_fields.keys()

    assert set(parameters.__annotations__) <= fields | KNOWN.keys()


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("value", "param"), [([7, -1], "stop_token_ids[1]"), ([True], "stop_token_ids[0]"), (5, "stop_token_ids")]
)
def test_a_wrong_stop_token_is_refused_by_its_place(route, value, param):
    assert refused(route, stop_token_ids=value).param == param


def test_listed_tokens_need_log_probabilities_of_the_answer_alone():
    assert parsed("/v1/completions", logprobs=0, logprob_token_ids=[3, 4, 3]).logprobs_asked == 2
    assert refused("/v1/chat/completions", logprob_token_ids=[3]).param == "logprob_token_ids"
    assert (
        refused("/v1/completions", logprobs=1, echo=True, logprob_token_ids=[3]).param == "logprob_token_ids"
    )


def test_messages_of_an_encoder_are_a_text_that_no_answer_follows():
    (conversation,) = parsed("/v1/embeddings", input=None, messages=[MESSAGE]).inputs
    (begun,) = parsed("/v1/embeddings", input=None, messages=[MESSAGE], add_generation_prompt=True).inputs

    assert ([*conversation.messages], conversation.ending, begun.ending) == ([MESSAGE], "message", "answer")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [MESSAGE]}, "messages"),
        ({"input": None}, "input"),
        ({"input": None, "messages": []}, "messages"),
        ({"input": None, "messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {
                "input": None,
                "messages": [MESSAGE],
                "add_generation_prompt": True,
                "continue_final_message": True,
            },
            "continue_final_message",
        ),
    ],
)
def test_messages_and_an_input_are_told_apart(fields, param):
    assert refused("/v1/embeddings", **fields).param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "", "content": "a"}, "messages[0].role"),
        ({"role": "r" * 65, "content": "a"}, "messages[0].role"),
        ({"role": None, "content": "a"}, "messages[0].role"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "content": "a"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "messages[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
            "messages[0].content[0]",
        ),
        ({"role": "user", "content": [{"type": "image_url", "uuid": "cat"}]}, "messages[0].content[0]"),
        ({"role": "assistant", "content": "", "function_call": {"name": "f"}}, "messages[0]"),
        ({"role": "assistant", "content": "", "reasoning": "a", "reasoning_content": "b"}, "messages[0]"),
        ({"role": "assistant", "content": "", "reasoning": 7}, "messages[0].reasoning"),
    ],
)
def test_a_message_that_would_lose_something_is_refused(message, param):
    assert refused("/v1/chat/completions", messages=[message]).param == param


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "chat_template", "eos_token", "self"]
)
def test_an_argument_that_would_replace_one_of_the_services_is_refused_by_its_name(route, name):
    refusal = refused(route, chat_template_kwargs={"enable_thinking": False, name: []})

    assert refusal.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template_kwargs", "enable_thinking"),
        ("chat_template_kwargs", {f"name_{n}": 1 for n in range(65)}),
        ("thinking_token_budget", -1),
        ("thinking_token_budget", 1.5),
        ("include_reasoning", "perhaps"),
    ],
)
def test_a_wrong_field_about_thoughts_is_refused_by_its_name(route, field, value):
    assert refused(route, **{field: value}).param == field


def test_a_completion_has_no_thought_to_be_told_about():
    for name, value in (("chat_template_kwargs", {"a": 1}), ("thinking_token_budget", 5)):
        assert refused("/v1/completions", **{name: value}).code == "unsupported_parameter"


def test_jobs_know_the_efforts_that_requests_know():
    assert get_args(Effort) == EFFORTS


@pytest.mark.parametrize("content", [None, ""])
def test_an_earlier_answer_may_be_a_thought_alone(content):
    said = {"role": "assistant", "content": content, "reasoning": "hm"}
    request = parsed("/v1/chat/completions", messages=[said, {"role": "user", "content": "a"}])
    [first, _] = request.prompts_given[0].messages

    assert first == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_an_earlier_answer_may_be_a_refusal():
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    request = parsed("/v1/chat/completions", messages=[said])

    assert request.prompts_given[0].messages == [{"role": "assistant", "content": "No."}]


def test_parts_that_are_no_text_are_kept_with_their_places():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
    texts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "No."}]
    said = [{"role": "user", "content": "a"}, {"role": "user", "content": [*texts, image]}]
    request = parsed("/v1/chat/completions", messages=said)
    [prompt] = request.prompts_given

    assert prompt.messages[1]["content"] == [texts[0], {"type": "text", "text": "No."}, image]
    assert prompt.media == {"messages[1].content[2]": "image_url"}
    assert request.text_chars == len("a" + "a" + "No.") + MEDIA_CHARS


def test_options_of_a_stream_need_a_stream():
    for stream in (None, False):
        refusal = refused("/v1/chat/completions", stream_options={}, stream=stream)
        assert refusal.param == "stream_options"
    assert parsed("/v1/chat/completions", stream_options={}, stream=True).streams


class Unread(list[Any]):
    """A list that is counted, and not looked at."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("its entries are looked at")


class UnreadObject(dict[str, Any]):
    """The same with names."""

    def items(self) -> Any:
        raise AssertionError("its fields are looked at")


MANY = Unread([{}] * 3000)


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("chat/completions", {"messages": MANY}),
        ("chat/completions", {"messages": [MESSAGE | {"content": MANY}]}),
        ("chat/completions", {"messages": [MESSAGE | {"role": "assistant", "tool_calls": MANY}]}),
        ("chat/completions", {"stop": MANY}),
        ("chat/completions", {"stop_token_ids": MANY}),
        ("chat/completions", {"allowed_token_ids": MANY}),
        ("completions", {"logprobs": 1, "logprob_token_ids": MANY}),
        ("embeddings", {"messages": MANY}),
        ("chat/completions", {"tools": MANY}),
        ("chat/completions", {"guided_choice": MANY}),
        ("chat/completions", {"logit_bias": UnreadObject.fromkeys(map(str, range(3000)), 1)}),
        ("chat/completions", {"metadata": UnreadObject.fromkeys(map(str, range(3000)), "1")}),
        ("completions", {"prompt": Unread(["a"] * 3000)}),
        ("completions", {"prompt": Unread([[1]] * 3000)}),
        ("responses", {"input": MANY}),
        ("responses", {"input": [MESSAGE | {"content": MANY}]}),
        ("responses", {"tools": MANY}),
        ("responses", {"include": MANY}),
        ("embeddings", {"input": Unread(["a"] * 3000)}),
        ("embeddings", {"input": Unread([[1]] * 3000)}),
        ("classifications", {"input": MANY}),
        ("rerank", {"documents": MANY}),
        ("score", {"text_2": MANY}),
    ],
)
def test_a_list_that_is_too_long_is_refused_before_its_entries_are_looked_at(route, fields):
    refusal = refused(f"/v1/{route}", **fields)
    assert re.search("3000|at most|1 to", refusal.message)
    assert refusal.param is not None


@pytest.mark.parametrize("wrong", [True, -1, 1.0, "1", None])
@pytest.mark.parametrize(("route", "field"), [("completions", "prompt"), ("embeddings", "input")])
def test_a_token_id_is_an_integer_of_at_least_0_wherever_it_stands(route, field, wrong):
    for given in ([1, wrong], [[1], [1, wrong]]):
        assert str(refused(f"/v1/{route}", **{field: given}).param).startswith(field)
