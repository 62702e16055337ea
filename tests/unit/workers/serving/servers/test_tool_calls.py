"""Calls of tools, from the request's tools to the answer's `tool_calls`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nightshift.errors import InvalidRequest
from nightshift.jobs import Answer
from tests.unit.engine.tiny.decoders import EOS, make_engine
from tests.unit.workers.serving.conftest import Listener, chat, submit
from tests.unit.workers.serving.servers.hermes import HERMES, PARAMETERS, WHERE, models_over, stop
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.models import Models
from workers.serving.servers.tool_calls import writes_calls

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
TIME = {"type": "function", "function": {"name": "time"}}


def ask(models: Models, **fields: Any) -> Listener:
    return chat(models, "Where?", **({"tools": [WEATHER, TIME], "max_tokens": 1500} | fields))


def calls_of(answer: Answer) -> list[tuple[str, Any]]:
    (choice,) = answer.body["choices"]
    calls = choice["message"].get("tool_calls", [])
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("seed", range(4))
def test_a_named_strict_function_gets_arguments_that_validate(wild: Models, seed: int) -> None:
    listener = ask(wild, tool_choice=WEATHER, temperature=1, seed=seed)
    ((name, arguments),) = calls_of(listener.wait())

    assert name == "weather"
    jsonschema.validate(arguments, PARAMETERS)
    assert listener.text == ""


def test_a_function_in_the_old_form_is_called_in_the_old_form(wild: Models) -> None:
    answer = ask(wild, tools=None, functions=[WEATHER["function"]], function_call={"name": "weather"}).wait()
    (choice,) = answer.body["choices"]

    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"]["name"] == "weather"
    jsonschema.validate(json.loads(choice["message"]["function_call"]["arguments"]), PARAMETERS)
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_model_that_must_call_calls_what_it_was_offered(wild: Models, parallel: bool) -> None:
    # Against endless lists of calls, which its random weights would write.
    bias = {"logit_bias": {str(EOS): 100}}
    answer = ask(wild, tools=[WEATHER], tool_choice="required", parallel_tool_calls=parallel, **bias).wait()
    calls = calls_of(answer)

    assert calls
    assert {name for name, _ in calls} == {"weather"}
    assert parallel or len(calls) == 1


@pytest.mark.parametrize("name", ["weather", "other"])
def test_only_allowed_tools_are_called(wild: Models, name: str) -> None:
    tools = [WEATHER, {"type": "function", "function": {"name": "other"}}]
    named = {"type": "function", "function": {"name": name}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    bias = {"logit_bias": {str(EOS): 100}}
    calls = calls_of(ask(wild, tools=tools, tool_choice=allowed, **bias).wait())

    assert {called for called, _ in calls} == {name}


def test_a_call_after_text_is_taken_apart(saying: Callable[[str], Models]) -> None:
    listener = ask(saying(f"Let me see.\n{WHERE}\n{WHERE}"))
    answer = listener.wait()

    assert calls_of(answer) == [("weather", {"city": "Oslo", "unit": "C"})] * 2
    message = answer.body["choices"][0]["message"]
    assert message["content"] == listener.text == "Let me see.\n"
    assert listener.arguments == [call["function"]["arguments"] for call in message["tool_calls"]]
    assert listener.num_parts > 2, "they come as they are generated"


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "none"}], ids=str)
def test_a_model_may_answer_without_a_call(saying: Callable[[str], Models], fields: dict[str, Any]) -> None:
    listener = ask(saying("No need to."), **fields)

    assert calls_of(listener.wait()) == []
    assert listener.text == "No need to."


@pytest.mark.parametrize("length", [40, 60])
def test_a_call_that_is_cut_off_has_the_beginning_of_its_arguments(
    saying: Callable[[str], Models], length: int
) -> None:
    listener = ask(saying(WHERE), max_tokens=length)
    (choice,) = listener.wait().body["choices"]
    head, arguments = WHERE[: WHERE.index('{"city')], WHERE[WHERE.index('{"city') : length]

    assert choice["finish_reason"] == "length"
    if length < len(head):
        assert choice["message"]["content"] == WHERE[:length]
    else:
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": arguments}
        assert choice["message"]["content"] is None
        assert listener.arguments == [arguments]


def test_arguments_are_streamed_through_preemption(hermes: Path) -> None:
    engine = make_engine(hermes, num_kv_blocks=180)
    models = models_over(engine)
    try:
        options = {"tools": [WEATHER], "tool_choice": WEATHER, "temperature": 1, "max_tokens": 1500}
        listeners = [chat(models, f"Where {seed}?", seed=seed, **options) for seed in range(6)]
        answers = [listener.wait() for listener in listeners]
    finally:
        stop(models)

    assert engine.stats().preemptions > 0
    for listener, answer in zip(listeners, answers, strict=True):
        calls = answer.body["choices"][0]["message"]["tool_calls"]
        assert listener.arguments == [call["function"]["arguments"] for call in calls]
        jsonschema.validate(json.loads(listener.arguments[0]), PARAMETERS)


def test_a_call_goes_on_where_an_earlier_attempt_was_interrupted(wild: Models) -> None:
    fields = {"tools": [WEATHER], "tool_choice": WEATHER, "temperature": 1, "seed": 3}
    whole = ask(wild, **fields)
    answer = whole.wait()
    (server,) = wild
    rest = ask(wild, carry_over=CarryOver([ChoiceSoFar(whole.token_ids[:60])], server.made_by), **fields)

    assert rest.wait().body == answer.body  # with the same ids of calls
    assert rest.arguments == whole.arguments
    assert rest.num_parts < whole.num_parts  # what was carried over came at once


def test_what_a_template_does_not_show_is_refused(models: Models) -> None:
    """The demo model's template knows no tools."""
    with pytest.raises(InvalidRequest) as auto:
        ask(models, max_tokens=None)
    with pytest.raises(InvalidRequest) as old:
        ask(models, max_tokens=None, tools=None, functions=[WEATHER["function"]])
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(InvalidRequest) as calls:
        submit(models, "/v1/chat/completions", {"model": models.ids[0], "messages": messages})

    asks = {"model": models.ids[0], "messages": [{"role": "user", "content": "5"}]}
    counts = [submit(models, "/v1/tokenize", asks | more).wait().body for more in ({}, {"tools": [WEATHER]})]

    assert (auto.value.param, calls.value.param) == ("tool_choice", "messages")
    assert counts[0] == counts[1], "no tool is called, so nothing is refused"
    assert (old.value.param, "set 'function_call' to" in old.value.message) == ("function_call", True)


@pytest.mark.parametrize(
    ("template", "writes"),
    [(HERMES, True), (HERMES + "<function=name>", False), (HERMES + "<arg_key>", False), ("", False)],
)
def test_the_form_of_calls_is_told_by_the_template(template: str, writes: bool) -> None:
    assert writes_calls(template) is writes
