"""Echoed and scored prompts on a real model: shapes, streams, several choices, and what is resumed."""

import json
import threading
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nightshift import endpoints
from nightshift.cli.demo import demo_model_path
from nightshift.endpoints.results import Identity
from nightshift.endpoints.texts.completions import Completions
from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.endpoints.texts.streams import AnswerHead, Piece
from nightshift.errors import InvalidRequest
from nightshift.jobs import Answer, JsonObject
from nightshift.jobs.priorities import PriorityClass
from nightshift_engine import Output, PromptLogprobs
from tests.unit.workers.serving.conftest import Listener, chat, submit
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Progress, Prompt, TextAnswer
from workers.serving.model_server import Inference
from workers.serving.models import Models

PROMPT = "48213 and 7"


def completion(models: Models, prompt: Any = PROMPT, **fields: Any) -> Listener:
    carry_over = fields.pop("carry_over", None)
    body = {"model": models.ids[0], "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return submit(models, "/v1/completions", body | fields, id=str((prompt, fields)), carry_over=carry_over)


def choices(answer: Answer) -> list[JsonObject]:
    body: JsonObject = answer.body
    return [*body["choices"]]


def reference(prompt: str) -> tuple[list[int], list[float]]:
    """The prompt's tokens, and the log-probabilities of those after the first by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    model = AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype=torch.float32)
    ids = tokenizer(prompt)["input_ids"]
    with torch.inference_mode():
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
    return ids, [rows[place][token].item() for place, token in enumerate(ids[1:])]


def test_an_echo_has_the_prompt_and_its_log_probabilities_before_those_of_the_answer(models: Models) -> None:
    plain = choices(completion(models, logprobs=2).wait())[0]
    echoed = choices(completion(models, logprobs=2, echo=True).wait())[0]

    ids, logprobs = reference(PROMPT)
    shown, count = echoed["logprobs"], len(ids)
    assert echoed["text"] == PROMPT + plain["text"]
    assert shown["tokens"][count:] == plain["logprobs"]["tokens"]
    assert shown["token_logprobs"][0] is shown["top_logprobs"][0] is None
    assert shown["token_logprobs"][1:count] == pytest.approx(logprobs, abs=1e-3)
    assert shown["token_logprobs"][count:] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-4)
    assert {len(shown[name]) for name in shown} == {count + 4}
    assert all(len(top) >= 2 for top in shown["top_logprobs"][1:])
    first = len(PROMPT)
    assert shown["text_offset"][count:] == [first + at for at in plain["logprobs"]["text_offset"]]
    assert shown["text_offset"][:count] == sorted(shown["text_offset"][:count])


def test_a_prompt_is_scored_without_generating(models: Models) -> None:
    answer = completion(models, echo=True, logprobs=1, max_tokens=0).wait()
    [choice] = choices(answer)

    ids, _ = reference(PROMPT)
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert len(choice["logprobs"]["tokens"]) == len(ids)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 0)
    assert choices(completion(models, echo=True, max_tokens=0).wait())[0]["text"] == PROMPT


def test_an_echo_alone_scores_nothing_so_it_reuses_what_is_computed(models: Models) -> None:
    long = "12345 " * 20
    asks: dict[str, Any] = {"echo": True, "max_tokens": 0}
    first = completion(models, long, **asks).wait()
    again = completion(models, long, **asks, user="another").wait()
    scored = completion(models, long, **asks, logprobs=0).wait()

    assert [choices(answer)[0]["text"] for answer in (first, again)] == [long, long]
    assert again.usage.cached_tokens > 0
    assert scored.usage.cached_tokens == 0, "all of its tokens need logits"
    assert {answer.usage.prompt_tokens for answer in (first, again, scored)} == {first.usage.prompt_tokens}
    assert again.usage.completion_tokens == 0


def test_token_ids_are_echoed_as_their_text(models: Models) -> None:
    ids, _ = reference(PROMPT)
    by_ids = choices(completion(models, ids, echo=True, logprobs=0).wait())[0]

    assert by_ids["text"].endswith(choices(completion(models).wait())[0]["text"])
    assert PROMPT.split()[0] in by_ids["text"]


def test_log_probabilities_name_tokens_by_their_ids_where_that_is_asked_for(models: Models) -> None:
    by_id = {"logprobs": 2, "return_tokens_as_token_ids": True}
    listener = completion(models, echo=True, **by_id)
    shown = choices(listener.wait())[0]["logprobs"]
    of_chat = chat(models, PROMPT, max_tokens=1, logprobs=True, return_tokens_as_token_ids=True).wait().body

    ids = reference(PROMPT)[0] + listener.token_ids
    assert shown["tokens"] == [f"token_id:{id}" for id in ids]
    assert [next(iter(top)) for top in shown["top_logprobs"][1:]] == shown["tokens"][1:]
    assert (
        shown["text_offset"]
        == choices(completion(models, echo=True, logprobs=2).wait())[0]["logprobs"]["text_offset"]
    )
    [entry] = of_chat["choices"][0]["logprobs"]["content"]
    assert entry["token"].startswith("token_id:")


@pytest.mark.parametrize("asks", [{}, {"logprobs": 1, "echo": True}, {"n": 2, "temperature": 1, "seed": 3}])
def test_token_ids_of_prompts_and_answers_are_shown_where_they_are_asked_for(
    models: Models, asks: JsonObject
) -> None:
    listener = completion(models, return_token_ids=True, **asks)
    shown = choices(listener.wait())
    plain = choices(completion(models, **asks).wait())
    of_chat = chat(models, PROMPT, max_tokens=2, return_token_ids=True).wait().body

    assert [[*choice["prompt_token_ids"]] for choice in shown] == [reference(PROMPT)[0]] * len(shown)
    assert [choice["token_ids"] for choice in shown] == [
        listener.choices[number].token_ids for number in range(len(shown))
    ]
    assert [choice["text"] for choice in shown] == [choice["text"] for choice in plain]
    assert len(of_chat["choices"][0]["token_ids"]) == of_chat["usage"]["completion_tokens"]
    assert len(of_chat["prompt_token_ids"]) == of_chat["usage"]["prompt_tokens"]


def test_prompt_logprobs_name_each_token_by_its_id_with_its_rank(models: Models) -> None:
    ids, logprobs = reference(PROMPT)
    [choice] = choices(completion(models, prompt_logprobs=1).wait())
    chat_answer = chat(models, PROMPT, prompt_logprobs=0).wait().body

    first, *others = choice["prompt_logprobs"]
    assert first is None
    for id, logprob, place in zip(ids[1:], logprobs, others, strict=True):
        own = place[str(id)]
        assert own["logprob"] == pytest.approx(logprob, abs=1e-3)
        assert (own["rank"] == 1) == (len(place) == 1), "the likeliest token is the prompt's own or another"
        assert {entry["rank"] for entry in place.values()} >= {1}
    assert choice["logprobs"] is None
    places = chat_answer["prompt_logprobs"]
    assert places[0] is None
    assert len(places) == chat_answer["usage"]["prompt_tokens"]


def test_a_streamed_echo_begins_with_the_prompt(models: Models) -> None:
    listener = completion(models, echo=True, logprobs=1, stream=True)
    answer = listener.wait()

    assert listener.text == choices(answer)[0]["text"]
    assert listener.text.startswith(PROMPT)
    assert len(listener.token_ids) == answer.usage.completion_tokens == 4, "the prompt's are none"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_the_chunks_of_an_echo_are_the_prompt_and_then_what_follows(
    models: Models, n: int, max_tokens: int
) -> None:
    asks: dict[str, Any] = {"echo": True, "logprobs": 2, "n": n, "max_tokens": max_tokens}
    body = {"model": models.ids[0], "prompt": [PROMPT], "stream": True, "temperature": 0, "ignore_eos": True}
    endpoint = Completions()
    request = endpoint.parse(body | asks)
    assert isinstance(request, GenerationRequest)
    progress, ended = list[Progress](), threading.Event()

    def listen(news: Progress) -> None:
        progress.append(news)
        if news.result is not None:
            ended.set()

    identity = Identity(f"chunks {n} {max_tokens}", 5)
    models.submit(Inference(identity.name, endpoint, request, identity, PriorityClass.STANDARD, listen))
    assert ended.wait(60)
    recorded = progress[-1].last_result.body
    assert recorded is not None

    events = endpoint.events(request, AnswerHead("cmpl-1", 5, PriorityClass.STANDARD))
    chunks = [
        event
        for news in progress
        if news.text or news.logprobs
        for event in events.piece(news.choice, Piece(news.text, news.logprobs))
    ]
    chunks += [event for choice in range(n) for event in events.closing(choice, recorded)]
    for index, whole in enumerate(recorded["choices"]):
        own = [c for chunk in chunks for c in json.loads(chunk.data)["choices"] if c["index"] == index]
        assert own[0]["text"] == PROMPT
        assert "".join(c["text"] for c in own) == whole["text"]
        assert [t for c in own for t in c["logprobs"]["tokens"]] == whole["logprobs"]["tokens"]
        assert [c["finish_reason"] for c in own][-1] == "length"


@pytest.mark.parametrize("asks", [{"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}, {"echo": True}])
def test_each_choice_of_each_prompt_shows_its_own_prompt(models: Models, asks: dict[str, Any]) -> None:
    prompts = ["1 2 3", "7", PROMPT]
    alone = [choices(completion(models, prompt, n=2, seed=3, **asks).wait()) for prompt in prompts]
    together = completion(models, prompts, n=2, seed=3, **asks).wait()

    for got, wanted in zip(choices(together), [choice for pair in alone for choice in pair], strict=True):
        assert got["text"] == wanted["text"]
        for name in ("prompt_logprobs",):
            assert [*map(set, filter(None, got.get(name, [])))] == [
                *map(set, filter(None, wanted.get(name, [])))
            ]
        if wanted["logprobs"] is not None:
            assert got["logprobs"]["tokens"] == wanted["logprobs"]["tokens"]
    counts = [completion(models, prompt).wait().usage.prompt_tokens for prompt in prompts]
    assert together.usage.prompt_tokens == sum(counts)


def test_a_row_that_an_earlier_lease_began_has_its_prompt_scored_again(models: Models) -> None:
    asks = {"echo": True, "logprobs": 1, "prompt_logprobs": 0, "n": 2}
    whole = completion(models, **asks)
    expected = whole.wait()
    del whole.choices[1].token_ids[2:], whole.choices[1].logprobs[2:]
    carry_over = CarryOver([whole.choices[0], whole.choices[1]], models.get(models.ids[0]).made_by)

    continued = completion(models, carry_over=carry_over, **asks).wait()

    assert [choice["text"] for choice in choices(continued)] == [
        choice["text"] for choice in choices(expected)
    ]
    for got, wanted in zip(choices(continued), choices(expected), strict=True):
        assert got["logprobs"]["tokens"] == wanted["logprobs"]["tokens"]
        assert len(got["prompt_logprobs"]) == len(wanted["prompt_logprobs"])


def test_a_chat_echo_repeats_the_last_message_of_the_assistant(models: Models) -> None:
    messages = [{"role": "user", "content": "5"}, {"role": "assistant", "content": "The answer: "}]
    plain = chat(models, "", messages=messages, max_tokens=3, ignore_eos=True).wait().body
    echoed = chat(models, "", messages=messages, max_tokens=3, ignore_eos=True, echo=True).wait().body

    said = [body["choices"][0]["message"]["content"] for body in (plain, echoed)]
    assert said[1] == "The answer: " + said[0]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("fields", [{}, {"add_generation_prompt": False}], ids=["SGLang", "vLLM"])
def test_a_chat_goes_on_with_its_last_message(models: Models, echo: bool, fields: JsonObject) -> None:
    messages = [{"role": "user", "content": "48213"}, {"role": "assistant", "content": "forty-eight"}]
    goes_on = {"messages": messages, "continue_final_message": True} | fields
    answer = chat(models, "", **goes_on, echo=echo, max_tokens=20).wait().body
    count = tokenized(models, **goes_on)["count"]

    said = answer["choices"][0]["message"]["content"]
    assert said == ("forty-eight" if echo else "") + " thousand two hundred thirteen"
    assert answer["usage"]["prompt_tokens"] == count


def test_a_chat_cannot_begin_an_answer_and_go_on_with_a_message(models: Models) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(models, "5", continue_final_message=True, add_generation_prompt=True)
    assert refused.value.param == "continue_final_message"


def test_a_token_that_only_begins_a_prompt_is_not_echoed() -> None:
    class Letters:
        """A token for each byte; 256 begins texts, 257 is special and no text."""

        bos_token_id = 256

        def token_bytes(self, token_id: int) -> bytes:
            return bytes([token_id]) if token_id < 256 else f"<{token_id}>".encode()

        def is_special(self, token_id: int) -> bool:
            return token_id > 255

        def decode_whole(self, token_ids: Any) -> str:
            return b"".join(map(self.token_bytes, token_ids)).decode()

    ids = [256, 65, 257, 66]
    request = endpoints.get("/v1/completions").parse(
        {"model": "m", "prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 0}
    )
    assert isinstance(request, GenerationRequest)
    prompt = Prompt(request, 0, ids, Letters())

    assert prompt.text == "A<257>B"
    answer = TextAnswer(Completions(), request, Identity("n", 5), Letters(), PriorityClass.STANDARD)
    answer.begin([ids])
    scores = [PromptLogprobs(-0.5)] * 3
    output = Output("x", "", [65], "length", 4, 1, 0, prompt_logprobs=scores)
    [_, last] = answer.take_prompt(0, output)
    assert last.result is not None
    assert last.result.body is not None
    [choice] = last.result.body["choices"]
    assert choice["logprobs"]["tokens"] == ["<256>", "A", "<257>", "B"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 6]


def test_a_prompt_that_is_too_long_to_score_is_refused_by_its_place(models: Models) -> None:
    with pytest.raises(InvalidRequest) as refused:
        completion(models, ["1", "7 " * 300], echo=True, logprobs=1, max_tokens=0)

    assert refused.value.param == "prompt[1]"
    completion(models, "4").wait()
    assert not models.get(models.ids[0])._engine.has_work


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"echo": "yes please"}, "echo"),
    ],
)
def test_what_cannot_be_asked_of_a_prompt_is_refused_by_name(
    models: Models, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        completion(models, **fields)
    assert refused.value.param == param


def tokenized(models: Models, **body: Any) -> JsonObject:
    answer: JsonObject = submit(models, "/v1/tokenize", {"model": models.ids[0], **body}).wait().body
    return answer


def detokenized(models: Models, tokens: Any) -> JsonObject:
    return submit(models, "/v1/detokenize", {"model": models.ids[0], "tokens": tokens}).wait().body


def test_a_text_is_turned_into_tokens_and_back(models: Models) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    said = tokenized(models, prompt=PROMPT, return_token_strs=True)

    assert said["tokens"] == tokenizer(PROMPT)["input_ids"]
    assert (said["count"], said["max_model_len"]) == (len(said["tokens"]), 256)
    assert said["token_strs"] == tokenizer.convert_ids_to_tokens(said["tokens"])
    bare = tokenized(models, prompt=PROMPT, add_special_tokens=False)
    assert bare["tokens"] == tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    assert bare["token_strs"] is None
    assert detokenized(models, bare["tokens"]) == {"prompt": PROMPT}


def test_a_conversation_is_tokenized_as_its_prompt_would_be(models: Models) -> None:
    messages = [{"role": "user", "content": "48213"}]
    answered = chat(models, "48213").wait()

    whole = tokenized(models, messages=messages)
    assert whole["count"] == answered.usage.prompt_tokens
    assert tokenized(models, messages=messages, add_generation_prompt=False)["count"] < whole["count"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"prompt": "x" * 40_000}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
    ],
    ids=["nothing", "two texts", "too long", "half a pair"],
)
def test_what_cannot_be_tokenized_is_refused_by_name(models: Models, body: JsonObject, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tokenized(models, **body)
    assert refused.value.param == param


def test_an_encoder_shows_its_tokens_too(models: Models) -> None:
    body = {"model": models.ids[1], "prompt": "a cat"}
    ids = submit(models, "/v1/tokenize", body).wait().body["tokens"]

    assert len(ids) == 4
    text = submit(models, "/v1/detokenize", {"model": models.ids[1], "tokens": ids[1:-1]}).wait().body
    assert text == {"prompt": "a cat"}


@pytest.mark.parametrize(
    ("tokens", "place"), [([5, 10**9], "tokens[1]"), ([2**40], "tokens[0]"), ([-1], "tokens[0]")]
)
def test_an_unknown_token_is_named_by_its_place(models: Models, tokens: list[int], place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        detokenized(models, tokens)
    assert refused.value.param == place
