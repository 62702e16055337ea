"""Log-probabilities of a real model's answers, in the shapes of both endpoints."""

import pytest

from tests.unit.workers.serving.conftest import chat, submit
from workers.serving.models import Models


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
        submit(models, "/v1/completions", body | {"logprobs": 2, "ignore_eos": True})
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
