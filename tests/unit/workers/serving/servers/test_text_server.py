"""A real model behind its server: bodies in, answers out, on the engine's own thread."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nightshift.cli.demo import number_in_words
from nightshift.endpoints.texts.generation import Conversation
from nightshift.errors import ConfigurationError, InvalidRequest, UnknownModel
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JsonObject
from tests.faults.kit.fake_engine import CONTEXT_LENGTH, FakeEngine
from tests.unit.workers.serving.conftest import Listener, chat, load, submit, texts
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import SamplingDefaults
from workers.serving.models import Models
from workers.serving.servers.conversations import conversation_text
from workers.serving.servers.text_server import TextServer

END = 5  # of the demo model's answers
CONTEXT_SENTENCE = "This model's maximum context length is 256 tokens."


def test_a_chat_is_answered_with_what_was_streamed(models: Models) -> None:
    listener = chat(models, "48213")
    answer = listener.wait()

    assert answer.body["choices"][0]["message"]["content"] == number_in_words(48213) == listener.text
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    assert answer.body["usage"]["completion_tokens"] == len(listener.token_ids)
    assert answer.body["created"] == 1_700_000_000


def test_sampling_without_a_seed_depends_on_the_row_alone(models: Models) -> None:
    said = {
        chat(models, "hello", temperature=1.5, max_tokens=8).wait().body["choices"][0]["message"]["content"]
        for _ in range(3)
    }
    assert len(said) == 1


def test_a_plain_prompt_is_completed_to_its_token_limit(models: Models) -> None:
    body = {"model": models.ids[0], "prompt": "12", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    answer = submit(models, "/v1/completions", body).wait()

    assert answer.body["object"] == "text_completion"
    assert answer.body["choices"][0]["finish_reason"] == "length"
    assert answer.body["usage"]["completion_tokens"] == 2


def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(models: Models) -> None:
    whole = chat(models, "77077")
    text = whole.wait().body["choices"][0]["message"]["content"]

    stopped = chat(models, "77077", stop_token_ids=[whole.token_ids[3]]).wait().body

    said = stopped["choices"][0]["message"]["content"]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == whole.token_ids.index(whole.token_ids[3]) + 1
    assert said != text
    assert text.startswith(said)


def test_embeddings_come_in_input_order_and_in_both_encodings(models: Models) -> None:
    texts = ["a cat", "a kitten", "quarterly revenue, and a good deal more of it than anybody expected"]
    body: JsonObject = {"model": models.ids[1], "input": texts}
    floats = submit(models, "/v1/embeddings", body, id="f").wait()
    packed = submit(models, "/v1/embeddings", body | {"encoding_format": "base64"}, id="b").wait()

    vectors = np.array([entry["embedding"] for entry in floats.body["data"]], dtype="<f4")
    unpacked = [np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in packed.body["data"]]
    np.testing.assert_allclose(vectors, np.array(unpacked), atol=1e-6)
    assert [entry["index"] for entry in floats.body["data"]] == [0, 1, 2]
    cat, kitten, revenue = vectors
    assert cat @ kitten > 0.5 > cat @ revenue


def test_a_model_is_asked_only_for_what_it_does(models: Models) -> None:
    with pytest.raises(InvalidRequest, match="makes embeddings"):
        submit(models, "/v1/completions", {"model": models.ids[1], "prompt": "x"})
    with pytest.raises(InvalidRequest, match="generates text"):
        submit(models, "/v1/embeddings", {"model": models.ids[0], "input": "x"})
    with pytest.raises(UnknownModel):
        submit(models, "/v1/embeddings", {"model": "unknown", "input": "x"})


def test_models_say_what_they_are(models: Models) -> None:
    decoder, encoder = (server.model for server in models)
    assert (decoder.id, decoder.kind, decoder.context_length) == ("demo_model", ModelKind.DECODER, 256)
    assert encoder.kind is ModelKind.ENCODER
    assert decoder.revision != encoder.revision


def test_a_directory_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        load(tmp_path)


@pytest.mark.parametrize("extreme", [{"temperature": 1e-40}, {"temperature": 2, "repetition_penalty": 0.01}])
def test_extreme_sampling_does_not_end_the_engine(models: Models, extreme: dict[str, float]) -> None:
    answer = chat(models, "7", max_tokens=20, **extreme).wait()

    assert answer.status_code == 200
    assert chat(models, "8").wait().body["choices"][0]["message"]["content"] == "eight"


def test_a_text_that_is_far_too_long_is_refused_before_tokens_are_made_of_it(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = models.get(models.ids[0])
    monkeypatch.setattr(server, "_engine", SimpleNamespace(add=None, tokenizer=None))

    with pytest.raises(InvalidRequest) as refused:
        chat(models, "1 " * 1_900_000)

    assert refused.value.code == "context_length_exceeded"
    assert refused.value.message.startswith(f"{CONTEXT_SENTENCE} However, 'messages' has 3800")


@pytest.mark.parametrize(
    ("prompt", "fields", "param", "said"),
    [
        ("7" * 1000, {}, "prompt", f"{CONTEXT_SENTENCE} However, a prompt of 10"),
        ("", {}, "prompt", "The prompt has no tokens"),
        ("7", {"max_tokens": 257}, "max_tokens", f"{CONTEXT_SENTENCE} However, max_tokens is too large: 257"),
        ("7", {"stop_token_ids": [1_000_000]}, "stop_token_ids", "1000000"),
        ("7", {"logit_bias": {"999999999": 1}}, "logit_bias", "Logit_bias has token id 999999999"),
        ("7", {"allowed_token_ids": [3, 1_000_000]}, "allowed_token_ids", "has token id 1000000"),
        ("7", {"logprobs": 0, "logprob_token_ids": [1_000_000]}, "logprob_token_ids", "token id 1000000"),
        ("7", {"allowed_token_ids": [END], "min_tokens": 1}, "allowed_token_ids", "only tokens that end"),
    ],
    ids=["too long", "empty", "tokens too many", "stop token", "bias", "allowed", "listed", "end alone"],
)
def test_what_can_never_run_is_refused_by_its_field(
    models: Models, prompt: str, fields: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        submit(models, "/v1/completions", {"model": models.ids[0], "prompt": prompt, **fields})

    assert refused.value.param == param
    assert said in refused.value.message
    assert (refused.value.code == "context_length_exceeded") == (CONTEXT_SENTENCE in said)


def test_as_many_tokens_may_be_asked_for_as_the_context_has(models: Models) -> None:
    assert chat(models, "7", max_completion_tokens=256).wait().status_code == 200
    with pytest.raises(InvalidRequest) as refused:
        chat(models, "7", max_completion_tokens=257)
    assert refused.value.param == "max_completion_tokens"


SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [7, 12, "many"]}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0, 1])
def test_every_choice_of_a_chat_answers_in_its_schema(models: Models, temperature: float) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    answer = chat(models, "Which one?", response_format=form, temperature=temperature, n=3).wait()

    for choice, text in zip(answer.body["choices"], texts(answer), strict=True):
        assert json.loads(text)["n"] in (7, 12, "many")
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"guided_choice": ["one", "two"]}, ("one", "two")),
        ({"guided_regex": "(x|y)"}, ("x", "y")),
        ({"structured_outputs": {"grammar": 'start: "p" | "q"'}}, ("p", "q")),
    ],
    ids=str,
)
def test_a_completion_is_held_to_its_form(
    models: Models, fields: dict[str, Any], right: tuple[str, ...]
) -> None:
    body = {"model": models.ids[0], "prompt": "Say", "seed": 3}
    answer = submit(models, "/v1/completions", body | fields).wait()

    assert answer.body["choices"][0]["text"] in right


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_json": {"type": "string", "minLength": 3, "maxLength": 2}}, "guided_json"),
        ({"structured_outputs": {"grammar": "start: missing"}, "n": 3}, "structured_outputs.grammar"),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_compiled_is_an_invalid_request(
    models: Models, fields: dict[str, Any], param: str
) -> None:
    listener = chat(models, f"about {param}", **fields)
    answer = listener.wait()

    assert (answer.status_code, answer.body["error"]["param"]) == (400, param)
    assert chat(models, f"after {param}", guided_choice=["fine"]).wait().status_code == 200


def test_a_chats_logprobs_spell_the_answer(models: Models) -> None:
    listener = chat(models, "48213", logprobs=True, top_logprobs=3)
    choice = listener.wait().body["choices"][0]
    content = choice["logprobs"]["content"]

    assert (
        bytes(byte for entry in content for byte in entry["bytes"]).decode() == choice["message"]["content"]
    )
    assert len(content) == len(listener.token_ids) - 1, "the token that ended it is no part of it"
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0] == {k: entry[k] for k in ("token", "logprob", "bytes")}, "greedy"
        assert -20 < entry["logprob"] <= 0


def tokens_of(models: Models, text: str) -> list[int]:
    token_ids: list[int] = models.get(models.ids[0])._engine.tokenizer.encode(text)
    return token_ids


def test_a_grammar_that_allows_none_of_the_allowed_tokens_is_refused_with_both_names(models: Models) -> None:
    digits = [token for digit in "789" for token in tokens_of(models, digit)]
    answer = chat(models, "7", allowed_token_ids=digits, guided_choice=["yes", "no"]).wait()

    assert (answer.status_code, answer.body["error"]["param"]) == (400, "guided_choice")
    assert "it allows none of allowed_token_ids here" in answer.body["error"]["message"]


def test_listed_tokens_are_the_alternatives_beside_the_chosen_one(models: Models) -> None:
    chosen, listed = (tokens_of(models, digit)[-1] for digit in "78")
    names = [f"token_id:{token}" for token in (chosen, listed)]
    asks = {"max_tokens": 1, "allowed_token_ids": [chosen], "return_tokens_as_token_ids": True}
    answer = chat(models, "7", logprobs=True, top_logprobs=5, logprob_token_ids=[listed], **asks).wait()
    again = chat(models, "7", logprobs=True, logprob_token_ids=[listed, chosen], **asks).wait()
    (entry,), (other,) = (said.body["choices"][0]["logprobs"]["content"] for said in (answer, again))

    assert entry["token"] == names[0]
    assert [top["token"] for top in entry["top_logprobs"]] == names
    assert sorted(top["token"] for top in other["top_logprobs"]) == sorted(names)


class Templated:
    """A tokenizer whose template leaves out messages of one role."""

    def chat_text(self, messages: Any, **arguments: Any) -> str:
        return "".join(f"{said['role']}: {said['content']}\n" for said in messages if said["role"] != "aside")


def test_a_message_in_a_role_of_its_own_is_one_that_the_template_writes() -> None:
    messages = [{"role": role, "content": role.upper()} for role in ("critic", "user", "aside")]
    known, left_out = Conversation(messages[:2]), Conversation(messages)

    said = conversation_text(cast(Any, Templated()), known, "messages", "reasoning_effort")
    assert said == "critic: CRITIC\nuser: USER\n"
    with pytest.raises(InvalidRequest, match="the chat template leaves out the role 'aside'") as refused:
        conversation_text(cast(Any, Templated()), left_out, "messages", "reasoning_effort")
    assert refused.value.param == "messages[2].role"


@pytest.mark.parametrize("bias", [-100, 100])
def test_logprobs_say_what_the_model_thought_before_a_bias(models: Models, bias: int) -> None:
    engine = models.get(models.ids[0])._engine
    (plain,) = chat(models, "7", max_tokens=1, logprobs=True, top_logprobs=20).wait().body["choices"]
    favourite, *others = plain["logprobs"]["content"][0]["top_logprobs"]
    biased = engine.tokenizer.encode((favourite if bias < 0 else others[0])["token"])[0]

    answer = chat(
        models, "7", max_tokens=1, logprobs=True, top_logprobs=20, logit_bias={str(biased): bias}
    ).wait()
    entry = answer.body["choices"][0]["logprobs"]["content"][0]

    assert entry["token"] == others[0]["token"]
    assert entry["logprob"] == pytest.approx(others[0]["logprob"], abs=1e-4)
    assert entry["top_logprobs"][0]["token"] == favourite["token"]


MODEL = "fake"
TOKENS = 9


class Stepped(TextServer):
    """Its engine steps when the test says."""

    def steps_by_hand(self, count: int) -> None:
        for _ in range(count):
            self._step()


@pytest.fixture
def server() -> Stepped:
    model = Model(id=MODEL, kind=ModelKind.DECODER, context_length=CONTEXT_LENGTH, revision="r")
    engine = FakeEngine(num_seqs_max=8)
    return Stepped(model, engine, lambda error: None, SamplingDefaults())  # type: ignore[arg-type]


def ask(server: Stepped, carry_over: CarryOver | None = None, **fields: object) -> Listener:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": TOKENS, "seed": 1, **fields}
    return submit(Models([server]), "/v1/completions", body, carry_over=carry_over, is_streamed=False)


def told(server: Stepped, choices: int = 1) -> list[list[int]]:
    """The tokens of each choice."""
    token_ids: list[list[int]] = [[] for _ in range(choices)]
    for progress in server.generated("one"):
        token_ids[progress.choice] += progress.token_ids
    return token_ids


def test_the_listener_hears_of_the_end_alone_and_every_token_is_told_once(server: Stepped) -> None:
    listener = ask(server)
    assert told(server) == [[]]
    server.steps_by_hand(4)
    first = told(server)[0]
    assert told(server) == [[]]
    server.steps_by_hand(3)
    second = told(server)[0]
    assert (len(first), len(second), listener.token_ids, listener.ended.is_set()) == (4, 3, [], False)

    server.steps_by_hand(TOKENS - 7)

    answer = listener.wait()
    assert len(listener.token_ids) == 2
    assert bytes(first + second + listener.token_ids).decode() == answer.body["choices"][0]["text"]
    assert answer.usage.completion_tokens == TOKENS
    assert told(server) == [[]]


def test_choices_are_told_apart(server: Stepped) -> None:
    listener = ask(server, n=2)
    server.steps_by_hand(4)
    token_ids = told(server, choices=2)
    assert [len(ids_of_choice) for ids_of_choice in token_ids] == [4, 4]

    server.steps_by_hand(TOKENS - 4)

    for index, choice in enumerate(listener.wait().body["choices"]):
        assert bytes(token_ids[index] + listener.choices[index].token_ids).decode() == choice["text"]


def test_a_continued_request_tells_its_earlier_tokens_first(server: Stepped) -> None:
    whole = ask(server)
    server.steps_by_hand(TOKENS)
    tokens = whole.token_ids

    listener = ask(server, CarryOver([ChoiceSoFar(tokens[:5])]))
    assert told(server) == [tokens[:5]]
    server.steps_by_hand(TOKENS)

    assert listener.token_ids == tokens[5:]
    assert listener.wait().body["choices"] == whole.wait().body["choices"]


def test_a_cancelled_request_tells_nothing(server: Stepped) -> None:
    ask(server)
    server.steps_by_hand(2)

    server.cancel("one")

    assert told(server) == [[]]
