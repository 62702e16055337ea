"""Calls of tools, from the request's tools to the answer's `tool_calls`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Answer, JsonObject
from tests.unit.workers.engine.running.scripted_runner import ScriptedRunner
from tests.unit.workers.engine.tiny_models import EOS, VOCAB_SIZE, make_engine, save_model
from tests.unit.workers.serving.conftest import Listener, chat, submit
from workers.engine import Engine, EngineConfig
from workers.engine.admission import ModelFacts
from workers.engine.batching.kv_blocks import BlockPool
from workers.engine.text.tokenizer import Tokenizer
from workers.serving.inference import SamplingDefaults
from workers.serving.models import Models
from workers.serving.text_server import TextServer
from workers.serving.tool_calls import writes_calls

HERMES = (
    "{% if tools %}{{ tools | tojson }}\n"
    'Answer with <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>\n{% endif %}'
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}"
    "\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
TIME = {"type": "function", "function": {"name": "time"}}
WHERE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>'


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_model(tmp_path_factory.mktemp("hermes"), max_position_embeddings=4096)
    (directory / "chat_template.jinja").write_text(HERMES)
    return directory


def models_over(engine: Engine) -> Models:
    fatal: list[BaseException] = []
    model = Model(id="tiny", kind=ModelKind.DECODER, context_length=4096, revision="r", position=0)
    server = TextServer(model, engine, fatal.append, SamplingDefaults())
    server.start()
    return Models([server])


def stop(models: Models) -> None:
    for server in models:
        server.stop()


@pytest.fixture(scope="module")
def wild(hermes: Path) -> Iterator[Models]:
    """Random weights: only a grammar makes its answers calls."""
    models = models_over(make_engine(hermes, num_kv_blocks=2048))
    yield models
    stop(models)


@pytest.fixture
def saying(hermes: Path) -> Iterator[Callable[[str], Models]]:
    started: list[Models] = []

    def start(text: str) -> Models:
        tokenizer = Tokenizer.load(str(hermes))
        runner = ScriptedRunner([*tokenizer.encode(text), EOS])
        facts = ModelFacts("scripted", VOCAB_SIZE, 4096, frozenset({EOS}))
        config = EngineConfig("scripted", block_size=4)
        started.append(models_over(Engine(runner, tokenizer, facts, BlockPool(2048, 4), config)))
        return started[-1]

    yield start
    for models in started:
        stop(models)


def ask(models: Models, **fields: Any) -> Listener:
    return chat(models, "Where?", **({"tools": [WEATHER, TIME], "max_tokens": 1500} | fields))


def calls_of(answer: Answer) -> list[tuple[str, Any]]:
    (choice,) = answer.body["choices"]
    calls = choice["message"].get("tool_calls", [])
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_named_strict_function_gets_arguments_that_validate(
    wild: Models, temperature: float, seed: int
) -> None:
    listener = ask(wild, tool_choice=WEATHER, temperature=temperature, seed=seed)
    ((name, arguments),) = calls_of(listener.wait())

    assert name == "weather"
    jsonschema.validate(arguments, PARAMETERS)
    assert listener.text == ""


@pytest.mark.parametrize("parallel", [True, False])
def test_a_model_that_must_call_calls_what_it_was_offered(wild: Models, parallel: bool) -> None:
    # Against endless lists of calls, which its random weights would write.
    bias = {"logit_bias": {str(EOS): 100}}
    answer = ask(wild, tools=[WEATHER], tool_choice="required", parallel_tool_calls=parallel, **bias).wait()
    calls = calls_of(answer)

    assert calls
    assert {name for name, _ in calls} == {"weather"}
    assert parallel or len(calls) == 1


def test_a_call_after_text_is_taken_apart(saying: Callable[[str], Models]) -> None:
    listener = ask(saying(f"Let me see.\n{WHERE}\n{WHERE}"))
    answer = listener.wait()

    assert calls_of(answer) == [("weather", {"city": "Oslo", "unit": "C"})] * 2
    assert answer.body["choices"][0]["message"]["content"] == listener.text == "Let me see.\n"


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "none"}, {"tool_choice": "auto"}], ids=str)
def test_a_model_may_answer_without_a_call(saying: Callable[[str], Models], fields: dict[str, Any]) -> None:
    listener = ask(saying("No need to."), **fields)

    assert calls_of(listener.wait()) == []
    assert listener.text == "No need to."


def test_one_call_alone_is_taken_where_calls_may_not_be_parallel(saying: Callable[[str], Models]) -> None:
    assert len(calls_of(ask(saying(WHERE), parallel_tool_calls=False).wait())) == 1


def test_a_call_that_is_cut_off_stays_text(saying: Callable[[str], Models]) -> None:
    answer = ask(saying(WHERE), max_tokens=40).wait()
    (choice,) = answer.body["choices"]

    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == WHERE[:40]


def test_ids_of_calls_are_the_same_at_every_attempt(saying: Callable[[str], Models]) -> None:
    first, second = (ask(saying(WHERE)).wait().body["choices"] for _ in range(2))

    assert first == second


def test_what_a_template_does_not_show_is_refused(models: Models) -> None:
    """The demo model's template knows no tools."""
    with pytest.raises(InvalidRequest) as auto:
        ask(models, max_tokens=None)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(InvalidRequest) as calls:
        submit(models, "/v1/chat/completions", {"model": models.ids[0], "messages": messages})

    assert (auto.value.param, calls.value.param) == ("tool_choice", "messages")


@pytest.mark.parametrize(
    ("template", "writes"),
    [(HERMES, True), (HERMES + "<function=name>", False), (HERMES + "<arg_key>", False), ("", False)],
)
def test_the_form_of_calls_is_told_by_the_template(template: str, writes: bool) -> None:
    assert writes_calls(template) is writes
