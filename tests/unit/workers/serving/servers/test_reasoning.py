"""Models that think, behind their server: what a request says of it, and the thought in its answer."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift import endpoints
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Answer, JsonObject
from nightshift_engine import Engine
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over
from tests.unit.engine.tiny.decoders import EOS, make_engine
from tests.unit.engine.tiny.thinking import HARMONY, OPENED, QWEN, save_thinking, thinking_tokenizer
from tests.unit.workers.serving.conftest import Listener, chat, submit
from tests.unit.workers.serving.servers.hermes import models_over, stop
from workers.serving.carry_over import CarryOver
from workers.serving.inference import SamplingDefaults
from workers.serving.kinds.answer_sizes import token_sizes
from workers.serving.models import Models
from workers.serving.servers.text_server import TextServer

SAID = "<think>\nI add.\n</think>\n\nSeven."
RAISING = QWEN + (
    "{% if enable_thinking is defined and enable_thinking is not boolean %}"
    "{{ raise_exception('enable_thinking must be a boolean') }}{% endif %}"
)
UNSWITCHED = "{% for message in messages %}{{ message.content.split('</think>')[-1] }}{% endfor %}"
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"

Saying = Callable[..., Models]


def thinking_engine(text: str, template: str) -> Engine:
    tokenizer = thinking_tokenizer(template)
    size = tokenizer.num_tokens
    runner = ScriptedRunner([*tokenizer.encode(text), EOS], vocab_size=size)
    return engine_over(runner, tokenizer, vocab_size=size, context_length=1024, num_blocks=512)


@pytest.fixture
def saying() -> Iterator[Saying]:
    """Models that answer this, whatever they are asked."""
    started: list[Models] = []

    def start(text: str = SAID, template: str = QWEN) -> Models:
        started.append(models_over(thinking_engine(text, template)))
        return started[-1]

    yield start
    for models in started:
        stop(models)


def message(answer: Answer) -> JsonObject:
    (choice,) = answer.body["choices"]
    return dict(choice["message"])


def prompt_of(template: str, **fields: Any) -> str:
    """The text that a model with this template reads of a request."""
    model = Model(id="tiny", kind=ModelKind.DECODER, context_length=1024, revision="r", position=0)
    engine = thinking_engine("", template)
    server = TextServer(model, engine, lambda error: None, SamplingDefaults())
    route = "/v1/responses" if "input" in fields else "/v1/chat/completions"
    endpoint = endpoints.get(route)
    body = {"model": "tiny"} | ({} if "input" in fields else {"messages": [{"role": "user", "content": "a"}]})
    [tokens] = server.tokenize(endpoint, [endpoint.parse(body | fields)])
    if isinstance(tokens, InvalidRequest):
        raise tokens
    return b"".join(map(engine.tokenizer.token_bytes, tokens[0])).decode()


def test_a_chats_thought_has_its_own_fields_and_is_counted(saying: Saying) -> None:
    listener = chat(saying(), "a")
    answer = listener.wait()

    assert message(answer)["content"] == listener.text == "Seven."
    assert (
        message(answer)["reasoning_content"] == message(answer)["reasoning"] == listener.reasoning == "I add."
    )
    count = len("\nI add.\n") + 2
    assert answer.usage.reasoning_tokens == count
    assert answer.body["usage"]["completion_tokens_details"] == {"reasoning_tokens": count}


def test_a_response_has_a_reasoning_item_before_its_message(saying: Saying) -> None:
    body = {"model": "tiny", "input": "a", "reasoning": {"effort": "low"}, "temperature": 0}
    answer = submit(saying(), "/v1/responses", body).wait().body
    thought, said = answer["output"]

    assert (thought["type"], thought["content"][0]["text"], thought["status"]) == (
        "reasoning",
        "I add.",
        "completed",
    )
    assert said["content"][0]["text"] == "Seven."
    assert answer["reasoning"]["effort"] == "low"
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_a_completion_keeps_all_as_its_text(saying: Saying) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 99, "temperature": 0}
    answer = submit(saying(), "/v1/completions", body).wait().body

    assert answer["choices"][0]["text"] == SAID
    assert "completion_tokens_details" not in answer["usage"]


def test_a_thought_that_is_cut_off_is_all_there_is(saying: Saying) -> None:
    answer = chat(saying(), "a", max_tokens=6).wait()
    body = {"model": "tiny", "input": "a", "max_output_tokens": 6, "temperature": 0}
    responded = submit(saying(), "/v1/responses", body).wait()

    assert (message(answer)["content"], message(answer)["reasoning_content"]) == ("", "I ad")
    assert answer.body["choices"][0]["finish_reason"] == "length"
    (item,) = responded.body["output"]
    assert (item["type"], item["status"], item["content"][0]["text"]) == ("reasoning", "incomplete", "I ad")


def test_a_thought_that_is_not_wanted_is_left_out_and_counted(saying: Saying) -> None:
    listener = chat(saying(), "a", include_reasoning=False)
    answer = listener.wait()

    assert message(answer) == {"role": "assistant", "content": "Seven.", "refusal": None}
    assert listener.reasoning == ""
    assert answer.usage.reasoning_tokens > 0


def test_log_probabilities_are_of_the_answer(saying: Saying) -> None:
    (choice,) = chat(saying(), "a", logprobs=True).wait().body["choices"]

    assert "".join(token["token"] for token in choice["logprobs"]["content"]) == "\n\nSeven."


def test_a_budget_cuts_a_thought_off_and_each_choice_has_its_own(saying: Saying) -> None:
    answer = chat(saying(), "a", thinking_token_budget=3, n=2).wait()
    thoughts = [choice["message"]["reasoning_content"] for choice in answer.body["choices"]]

    assert thoughts == ["I "] * 2


@pytest.mark.parametrize("fields", [{}, {"chat_template_kwargs": {"a": 1}}], ids=str)
def test_without_a_switch_no_effort_ends_a_thought_where_it_begins(
    saying: Saying, fields: JsonObject
) -> None:
    for text in ("<think>hm</think>7", "7"):
        answer = message(chat(saying(text, UNSWITCHED), "a", reasoning_effort="none", **fields).wait())
        assert not answer.get("reasoning_content")
    opened = chat(saying("#abc", OPENED), "a", reasoning_effort="none").wait()

    assert message(opened) == {"role": "assistant", "content": "abc", "refusal": None}
    assert opened.usage.reasoning_tokens == 1


def test_a_call_is_read_behind_the_thought(saying: Saying) -> None:
    template = QWEN + "{% if tools %}{{ tools }}<tool_call>{{ arguments }}{% endif %}"
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    models = saying(f"<think>Shall I <tool_call>?</think>{call}", template)
    answer = message(chat(models, "a", tools=tools).wait())

    assert answer["reasoning_content"] == "Shall I <tool_call>?"
    assert [called["function"]["name"] for called in answer["tool_calls"]] == ["f"]


def test_an_answer_in_a_form_may_be_thought_about_first(saying: Saying) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}
    answer = message(chat(saying("<think>yes?</think>?"), "a", response_format=form).wait())

    assert answer["reasoning_content"] == "yes?"
    assert json.loads(answer["content"]) in ("yes", "no")


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        (QWEN, {}, "<assistant>"),
        (QWEN, {"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>\n\n"),
        (QWEN, {"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        (QWEN, {"reasoning_effort": "low"}, "<assistant>"),
        (
            QWEN,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "<assistant>",
        ),
        (QWEN, {"input": "a", "reasoning": {"effort": "none"}}, "<think>\n\n</think>\n\n"),
        (PLAIN, {"reasoning_effort": "none", "chat_template_kwargs": {"no_such": 1}}, "a"),
    ],
)
def test_the_template_is_told_how_much_to_think(template: str, fields: JsonObject, expected: str) -> None:
    assert prompt_of(template, **fields).endswith(expected)


def test_an_effort_that_the_template_writes_is_passed_as_it_is() -> None:
    assert prompt_of(HARMONY, reasoning_effort="low").startswith("Reasoning: low\n")
    assert prompt_of(HARMONY, input="a", reasoning={"effort": "high"}).startswith("Reasoning: high\n")


@pytest.mark.parametrize(
    ("template", "fields", "param", "said"),
    [
        (
            RAISING,
            {"chat_template_kwargs": {"enable_thinking": "no"}},
            "chat_template_kwargs",
            "must be a boolean",
        ),
        (PLAIN, {"thinking_token_budget": 5}, "thinking_token_budget", "no marker"),
    ],
)
def test_what_a_template_does_not_take_is_refused_by_its_field(
    template: str, fields: JsonObject, param: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        prompt_of(template, **fields)

    assert refused.value.param == param
    assert said in refused.value.message


def test_earlier_thoughts_go_back_into_the_prompt() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "user", "content": "c"},
    ]
    items = [
        {"role": "user", "content": "a"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]

    for fields in ({"messages": turns}, {"input": items}):
        assert "<think>\nhm\n</think>\n\nb" in prompt_of(QWEN, **fields)
        assert "analysis<|message|>hm<|end|>" in prompt_of(HARMONY, **fields)
        assert "hm" not in prompt_of(OPENED, **fields), "this family leaves earlier thoughts out"


def test_the_text_that_a_template_makes_can_be_shown(saying: Saying) -> None:
    models, messages = saying(), [{"role": "user", "content": "a"}]

    def shown(**fields: Any) -> str:
        body = {"model": "tiny", "messages": messages} | fields
        token_ids = submit(models, "/v1/tokenize", body).wait().body["tokens"]
        said = submit(models, "/v1/detokenize", {"model": "tiny", "tokens": token_ids}).wait().body
        return str(said["prompt"])

    assert shown() == "<user>a\n<assistant>"
    for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        assert shown(**fields) == "<user>a\n<assistant><think>\n\n</think>\n\n"
    with pytest.raises(InvalidRequest) as refused:
        shown(chat_template_kwargs={"tools": []})
    assert refused.value.param == "chat_template_kwargs.tools"


def test_a_row_that_is_carried_over_goes_on_in_its_thought(tmp_path: Path) -> None:
    directory = save_thinking(tmp_path, OPENED)
    fields: dict[str, Any] = {"max_tokens": 20, "thinking_token_budget": 8, "ignore_eos": True}

    def answered(carry_over: CarryOver | None) -> Listener:
        models = models_over(make_engine(directory, num_kv_blocks=512))
        try:
            listener = chat(models, "a", carry_over=carry_over, **fields)
            listener.wait()
            return listener
        finally:
            stop(models)

    whole = answered(None)
    for length in (3, 8, 9, 15):
        so_far = whole.choices[0].copy()
        so_far.token_ids = so_far.token_ids[:length]
        resumed = answered(CarryOver([so_far]))
        assert resumed.answer == whole.answer
        assert (resumed.reasoning, resumed.text) == (whole.reasoning, whole.text)
    assert whole.reasoning


def test_answers_of_a_model_that_thinks_may_show_each_token_twice() -> None:
    tokenizer = thinking_tokenizer()
    sizes = [
        token_sizes(tokenizer.token_ids, tokenizer.spelled, thinks=thinks).token for thinks in (False, True)
    ]

    assert sizes[1] == 2 * sizes[0]
