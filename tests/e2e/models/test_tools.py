"""Models that learned to call tools, in a real service: online, streamed and as rows of batches.

The tags of a call are tokens of their own, marked as in Qwen's and in Hermes' files.
"""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from nightshift.jobs import JsonObject
from tests.e2e.service import Service, answers_of, forked
from tests.unit.workers.serving.servers.trained import (
    ANSWERS,
    CALLS,
    CALLS_IN_LETTERS,
    CALLS_TWICE,
    TALKS,
    THINKS_AND_CALLS,
    TOOLS,
    WRITES_JSON,
    save_trained,
)

MODELS = {"qwen": False, "hermes": True}
CITY: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMED_CITY: JsonObject = {"name": "place", "schema": CITY, "strict": True}
FORM: JsonObject = {"type": "json_schema", "json_schema": NAMED_CITY}
WEATHER: JsonObject = {"type": "function", "function": {"name": "weather"}}
FLAT_TOOLS = [{"type": "function"} | tool["function"] for tool in TOOLS]
OSLO, TWO = [("weather", "Oslo")], [("weather", "Bonn"), ("time", "Lima")]

Outcome = tuple[str | None, list[tuple[str, str]]]

CASES: dict[str, tuple[str, JsonObject, Outcome]] = {
    "auto": (CALLS, {}, (None, OSLO)),
    "auto, twice": (CALLS_TWICE, {}, (None, TWO)),
    "auto, letter by letter": (CALLS_IN_LETTERS, {}, (None, [("time", "Kiel")])),
    "auto, after a thought": (THINKS_AND_CALLS, {}, (None, [("weather", "Rome")])),
    "auto, no call": (TALKS, {}, (ANSWERS[TALKS], [])),
    "required": (CALLS_TWICE, {"tool_choice": "required"}, (None, TWO)),
    "required, one": (CALLS, {"tool_choice": "required", "parallel_tool_calls": False}, (None, OSLO)),
    "named": (CALLS, {"tool_choice": WEATHER}, (None, OSLO)),
    "form, call": (CALLS, {"response_format": FORM}, (None, OSLO)),
    "form, no call": (WRITES_JSON, {"response_format": FORM}, (ANSWERS[WRITES_JSON], [])),
    "form, required": (CALLS, {"response_format": FORM, "tool_choice": "required"}, (None, OSLO)),
    "form, none": (WRITES_JSON, {"response_format": FORM, "tool_choice": "none"}, ('{"city', [])),
}


EACH_MODEL = ["qwen", pytest.param("hermes", marks=pytest.mark.exhaustive)]


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serves the models that the selected tests name: training one takes long."""
    folder = tmp_path_factory.mktemp("tools")
    specs = [item.callspec for item in request.session.items if item.path == request.path]
    names = {spec.params["model"] for spec in specs}
    paths = [save_trained(folder / name, is_special=MODELS[name]) for name in sorted(names)]
    models = [word for path in paths for word in ("--model", str(path))]
    with forked(folder / "data", *models, DTYPE="float32", ENGINE_NUM_KV_BLOCKS="400") as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with service.openai() as client:
        yield client


def chat(model: str, case: str) -> dict[str, Any]:
    prompt, fields, _ = CASES[case]
    messages = [{"role": "user", "content": prompt}]
    settings = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 200}
    return {**settings, "tools": [*TOOLS], **fields}


def outcome(answer: ChatCompletion) -> Outcome:
    (choice,) = answer.choices
    calls = choice.message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    functions = [call.function for call in calls if call.type == "function"]
    return choice.message.content, [(f.name, json.loads(f.arguments)["city"]) for f in functions]


def thought(answer: ChatCompletion) -> str | None:
    return (answer.choices[0].message.model_extra or {}).get("reasoning_content")


def check(case: str, seen: Outcome) -> None:
    content, calls = CASES[case][2]
    if case == "form, none":  # the model was not shown its tools, and learned no such answer
        content, seen = None, (None, seen[1]) if str(seen[0]).startswith('{"') else seen
    assert seen == (content, calls), case


@pytest.mark.parametrize("model", EACH_MODEL)
@pytest.mark.parametrize("case", CASES)
def test_a_chat_has_the_calls_whole_and_streamed(client: openai.OpenAI, model: str, case: str) -> None:
    whole = client.chat.completions.create(**chat(model, case))
    with client.chat.completions.stream(**chat(model, case)) as stream:
        streamed = stream.get_final_completion()

    check(case, outcome(whole))
    assert outcome(streamed) == outcome(whole)
    assert thought(streamed) == thought(whole) == ("hm" if case == "auto, after a thought" else None)
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason


@pytest.mark.parametrize("model", EACH_MODEL)
def test_rows_of_a_batch_have_the_same_calls(service: Service, model: str) -> None:
    rows = answers_of(service, "/v1/chat/completions", {case: chat(model, case) for case in CASES})

    assert rows.keys() == CASES.keys()
    for case in CASES:
        check(case, outcome(ChatCompletion.model_validate(rows[case])))


@pytest.mark.parametrize("model", EACH_MODEL)
@pytest.mark.parametrize(("prompt", "text"), [(CALLS, ""), (WRITES_JSON, ANSWERS[WRITES_JSON])])
def test_a_response_calls_or_has_its_form(client: openai.OpenAI, model: str, prompt: str, text: str) -> None:
    body: dict[str, Any] = {
        "model": model,
        "input": prompt,
        "temperature": 0,
        "tools": FLAT_TOOLS,
        "text": {"format": {"type": "json_schema"} | NAMED_CITY},
    }
    whole = client.responses.create(**body)
    with client.responses.stream(**body) as stream:
        streamed = stream.get_final_response()

    def said(response: Response) -> tuple[str, list[str]]:
        calls = [item for item in response.output if item.type == "function_call"]
        return response.output_text, [json.loads(call.arguments)["city"] for call in calls]

    assert said(whole) == said(streamed) == (text, [] if text else ["Oslo"])
