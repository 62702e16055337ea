"""`generate`: a list of prompts through an engine in one call."""

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nightshift_engine import Engine, InvalidRequest, Output, Request, SamplingParams, generate, offline
from nightshift_engine.core.batcher import Chunk
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over, scripted
from tests.unit.engine.tiny.decoders import (
    CONTEXT,
    EOS,
    greedy,
    load_tokenizer,
    random_prompts,
    reference_greedy,
)

GREEDY = SamplingParams(temperature=0)


def test_completions_come_in_the_order_of_the_prompts(llama: Path, engine: Engine) -> None:
    prompts = random_prompts(12)
    completions = generate(engine, prompts, [greedy(3 + index) for index in range(12)])

    expected = reference_greedy(llama, prompts, 14)
    assert [completion.token_ids for completion in completions] == [
        answer[: 3 + index] for index, answer in enumerate(expected)
    ]
    assert {completion.finish_reason for completion in completions} == {"length"}
    assert not engine.has_work


def test_a_prompt_is_a_text_or_token_ids_or_messages(engine: Engine) -> None:
    messages = [{"role": "user", "content": "Good night"}]
    tokenizer = engine.tokenizer
    given = generate(engine, ["Good night", messages], greedy(5))
    same = generate(engine, [tokenizer.encode("Good night"), tokenizer.render_chat(messages)], greedy(5))

    assert [completion.token_ids for completion in given] == [completion.token_ids for completion in same]
    assert given[0].text == tokenizer.decode(given[0].token_ids)


def test_a_model_is_loaded_from_its_directory(llama: Path) -> None:
    (completion,) = generate(llama, [[1, 2, 3]], greedy(4))

    assert completion.token_ids == reference_greedy(llama, [[1, 2, 3]], 4)[0]


def test_without_a_seed_a_second_call_draws_the_same_and_each_prompt_its_own(engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=2.0)
    first, second = (generate(engine, [[7, 8]] * 3, params) for _ in range(2))

    assert [completion.token_ids for completion in first] == [completion.token_ids for completion in second]
    assert len({tuple(completion.token_ids) for completion in first}) == 3


def test_no_more_than_a_window_is_in_the_engine(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "WINDOW_REQUESTS", 2)
    engine = scripted(llama, "ab")
    waiting: list[int] = []
    step = engine.step

    def counted_step() -> list[Output]:
        stats = engine.stats()
        waiting.append(stats.running + stats.waiting)
        return step()

    monkeypatch.setattr(engine, "step", counted_step)

    completions = generate(engine, [[number] for number in range(7)], GREEDY)

    assert [completion.text for completion in completions] == ["ab"] * 7
    assert max(waiting) == 2


# What is refused


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], "empty prompt"),
        ([1] * CONTEXT, "prompt"),
        ([10**9], "token id"),
        ([1, "two"], "neither a text, nor token ids, nor messages"),
        ([{"role": "user", "content": "\ud83d"}], "UTF-8"),
    ],
)
def test_a_wrong_prompt_is_named_before_anything_runs(engine: Engine, prompt: Seq[int], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"prompts\[1\]: .*{reason}"):
        generate(engine, [[1, 2], prompt], greedy(4))

    assert engine.stats().tokens_computed == 0
    assert not engine.has_work


@pytest.mark.parametrize(
    ("prompts", "params", "reason"),
    [("Good night", None, "give a list"), ([[1], [2]], [greedy(4)], "params has 1 entries for 2 prompts")],
)
def test_what_is_no_list_of_prompts_with_their_params_is_refused(
    engine: Engine, prompts: Any, params: Any, reason: str
) -> None:
    assert generate(engine, []) == []
    with pytest.raises(InvalidRequest, match=reason):
        generate(engine, prompts, params)


def test_an_engine_with_other_work_is_refused(engine: Engine) -> None:
    engine.add(Request("other", [1], greedy(4)))

    with pytest.raises(InvalidRequest, match="under way"):
        generate(engine, [[1]], greedy(4))


# Failures


class OneOfNoNumbers(ScriptedRunner):
    """Logits of prompts that begin with 9 are not finite."""

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        logits = super().forward(chunks, promised)
        rows = [chunk for chunk in chunks if chunk.is_last]
        for row, chunk in enumerate(rows):
            if chunk.sequence.token_ids[0] == 9:
                logits[row] = torch.nan
        return logits


def test_a_prompt_that_fails_says_why_and_the_others_go_on(llama: Path) -> None:
    tokenizer = load_tokenizer(str(llama))
    engine = engine_over(OneOfNoNumbers([*tokenizer.encode("ab"), EOS]), tokenizer)

    good, bad, last = generate(engine, [[1], [9], [2]], GREEDY)

    assert (good.text, last.text) == ("ab", "ab")
    assert bad.finish_reason == "abort"
    assert bad.error is not None


def test_where_the_model_fails_the_engine_is_left_without_work(llama: Path) -> None:
    tokenizer = load_tokenizer(str(llama))
    runner = ScriptedRunner([*tokenizer.encode("ab"), EOS])
    engine = engine_over(runner, tokenizer)
    runner.fail_next = True

    with pytest.raises(RuntimeError, match="kernel launch failed"):
        generate(engine, [[1], [2]], GREEDY)

    assert not engine.has_work
    assert [completion.text for completion in generate(engine, [[1], [2]], GREEDY)] == ["ab", "ab"]


def test_a_bar_is_drawn_on_stderr_if_it_is_asked_for(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(scripted(llama, "ab"), [[1], [2]], GREEDY)
    assert capsys.readouterr() == ("", "")

    generate(scripted(llama, "ab"), [[1], [2]], GREEDY, show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%" in err
