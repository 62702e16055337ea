"""Several choices of one request on a real model: separate draws, one prompt, one fate."""

import json
from typing import Any

import pytest

from nightshift.cli.demo import number_in_words
from nightshift.errors import InvalidRequest
from nightshift.jobs import Answer
from nightshift_engine import TokenLogprobs
from tests.unit.workers.serving.conftest import chat, submit, texts
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.models import Models

WARM: dict[str, Any] = {"temperature": 2.0, "seed": 11, "max_tokens": 12}


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
    carry_over = CarryOver.from_json(json.loads(json.dumps(CarryOver(so_far, made_by).to_json(7))))

    continued = chat(models, "5151", n=3, carry_over=carry_over, **params)

    assert texts(continued.wait()) == texts(expected)
    assert continued.answer is not None
    assert continued.answer.usage.completion_tokens == expected.usage.completion_tokens
    for got, wanted in zip(continued.answer.body["choices"], expected.body["choices"], strict=True):
        assert got["finish_reason"] == wanted["finish_reason"]
        assert (got["logprobs"] is None) == (wanted["logprobs"] is None)
        if got["logprobs"] is not None:
            tokens = [[entry["token"] for entry in choice["logprobs"]["content"]] for choice in (got, wanted)]
            assert tokens[0] == tokens[1]


def complete(models: Models, prompt: Any, **fields: Any) -> Answer:
    body = {"model": models.ids[0], "prompt": prompt, "max_tokens": 6, "ignore_eos": True}
    return submit(models, "/v1/completions", body | fields, id=str(prompt)).wait()


def completed(answer: Answer) -> list[str]:
    return [choice["text"] for choice in answer.body["choices"]]


def test_several_prompts_are_each_completed_as_if_alone(models: Models) -> None:
    prompts = ["12", "7 8 9", "48213"]
    alone = [complete(models, prompt, seed=5, n=2) for prompt in prompts]
    together = complete(models, prompts, seed=5, n=2)

    assert [choice["index"] for choice in together.body["choices"]] == [*range(6)]
    assert completed(together) == [text for answer in alone for text in completed(answer)]
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    assert together.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone) == 36


def test_what_an_earlier_lease_left_of_each_prompt_is_continued(models: Models) -> None:
    body = {"model": models.ids[0], "prompt": ["1 2", "7", "48213"], "max_tokens": 8, "ignore_eos": True}
    whole = submit(models, "/v1/completions", body, id="whole")
    expected = whole.wait()
    for choice, kept in enumerate((8, 3, 0)):
        del whole.choices[choice].token_ids[kept:]
    carry_over = CarryOver([whole.choices[choice] for choice in range(3)], models.get(models.ids[0]).made_by)

    continued = submit(models, "/v1/completions", body, id="again", carry_over=carry_over).wait()

    assert continued.body == expected.body


def test_one_prompt_several_times_is_drawn_differently_unless_a_seed_is_given(models: Models) -> None:
    warm: dict[str, Any] = {"temperature": 2.0, "max_tokens": 12}

    assert len(set(completed(complete(models, ["tell me"] * 4, **warm)))) > 1
    assert len(set(completed(complete(models, ["tell me"] * 4, seed=3, **warm)))) == 1


@pytest.mark.parametrize("wrong", ["", "7 " * 300, "7" * 100_000, [10**9]], ids=lambda value: str(value)[:9])
def test_one_prompt_that_cannot_run_refuses_its_request_by_its_place(models: Models, wrong: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        complete(models, ["1", "2", "3", wrong], n=2)

    assert refused.value.param == "prompt[3]"
    assert completed(complete(models, "4"))
    assert not models.get(models.ids[0])._engine.has_work


NONSENSE = ChoiceSoFar([10, 11, 12])


def of_nonsense(*likeliest: int) -> ChoiceSoFar:
    """A choice with log-probabilities."""
    chances = TokenLogprobs(-0.5, likeliest, (-0.5,) * len(likeliest))
    return ChoiceSoFar(NONSENSE.token_ids, [chances] * len(NONSENSE.token_ids))


@pytest.mark.parametrize(
    ("choices", "changes", "fields"),
    [
        pytest.param([NONSENSE], {"model_digest": "another"}, {}, id="another model"),
        pytest.param([NONSENSE], {"model_digest": 7}, {}, id="no model"),
        pytest.param([NONSENSE] * 2, {}, {}, id="a choice too many"),
        pytest.param([NONSENSE], {}, {"n": 2}, id="a choice too few"),
        pytest.param([NONSENSE], {}, {"max_tokens": 2}, id="tokens too many"),
        pytest.param([ChoiceSoFar([10, 10**9])], {}, {}, id="a token there is not"),
        pytest.param([ChoiceSoFar([10, 10**30])], {}, {}, id="a token there can never be"),
        pytest.param([NONSENSE, ChoiceSoFar([10**9])], {}, {"n": 2}, id="the second choice's token"),
        pytest.param([NONSENSE], {}, {"logprobs": True}, id="logprobs missing"),
        pytest.param([of_nonsense()], {}, {}, id="logprobs not asked for"),
        pytest.param([of_nonsense(5)], {}, {"logprobs": True, "top_logprobs": 2}, id="likeliest too few"),
        pytest.param([of_nonsense(10**9)], {}, {"logprobs": True, "top_logprobs": 1}, id="likeliest unknown"),
    ],
)
def test_what_cannot_be_continued_begins_anew(
    models: Models, choices: list[ChoiceSoFar], changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    carry_over = CarryOver(choices, dict(models.get(models.ids[0]).made_by or {}) | changes)
    expected = chat(models, "46", **fields).wait()

    answer = chat(models, "46", carry_over=carry_over, **fields).wait()

    assert texts(answer) == texts(expected)
    assert answer.usage.completion_tokens == expected.usage.completion_tokens


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
    doomed = chat(models, "sick", n=3, temperature=1, max_tokens=60, ignore_eos=True)
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
