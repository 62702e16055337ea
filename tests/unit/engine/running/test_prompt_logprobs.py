"""Log-probabilities of a prompt's tokens: those of transformers, whatever the prompt is computed beside."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nightshift_engine import Engine, InvalidRequest, Output, PromptLogprobs, Request
from nightshift_engine.core import steps
from nightshift_engine.core.batcher import Chunk
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over
from tests.unit.engine.tiny.decoders import (
    VOCAB_SIZE,
    complete,
    greedy,
    load_tokenizer,
    make_engine,
    random_prompts,
)

CRAMPED: dict[str, Any] = {"num_kv_blocks": 16, "max_num_batched_tokens": 16, "max_num_seqs": 5}


def scoring(id: str, prompt: list[int], num_top: int = 2, **more: Any) -> Request:
    return Request(id, prompt, greedy(1), prompt_logprobs=num_top, **more)


def run(engine: Engine, *requests: Request) -> dict[str, Output]:
    """The last output of each."""
    for request in requests:
        engine.add(request)
    last: dict[str, Output] = {}
    while engine.has_work:
        last |= {output.id: output for output in engine.step() if output.finish_reason is not None}
        engine.check_integrity()
    return last


def scores(output: Output) -> list[PromptLogprobs]:
    assert output.prompt_logprobs is not None
    return output.prompt_logprobs


def reference(directory: Path, prompt: list[int]) -> Tensor:
    """Log-probabilities `[tokens, vocabulary]` of every place by transformers, in float32."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([prompt])).logits[0].float(), dim=-1)


def assert_close(got: Sequence[PromptLogprobs], wanted: Tensor, prompt: list[int]) -> None:
    assert len(got) == len(prompt) - 1
    for place, (token, score) in enumerate(zip(prompt[1:], got, strict=True)):
        row = wanted[place]
        assert score.logprob == pytest.approx(row[token].item(), abs=2e-4)
        assert score.rank == int((row >= row[token] - 1e-6).sum())
        assert list(score.top_logprobs) == pytest.approx(row.topk(2).values.tolist(), abs=2e-4)


def test_a_prompts_tokens_have_the_log_probabilities_of_transformers(llama: Path) -> None:
    prompts = random_prompts(4)
    last = run(make_engine(llama), *(scoring(str(n), prompt) for n, prompt in enumerate(prompts)))

    for number, prompt in enumerate(prompts):
        assert_close(scores(last[str(number)]), reference(llama, prompt), prompt)


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_a_step_scores_a_bounded_number_of_tokens_and_the_scores_are_the_same(
    llama: Path, monkeypatch: pytest.MonkeyPatch, overlap_steps: bool
) -> None:
    monkeypatch.setattr(steps, "SCORED_TOKENS_MAX", 7)
    prompts = [[*range(3, 60)], [*range(90, 40, -1)], [9, 8]]
    engine = make_engine(llama, overlap_steps=overlap_steps)
    rows: list[int] = []
    forward = engine._runner.forward

    def watched(chunks: Sequence[Chunk], promised: Tensor | None = None) -> Tensor:
        rows.append(sum(chunk.num_scored for chunk in chunks))
        return forward(chunks, promised)

    monkeypatch.setattr(engine._runner, "forward", watched)
    last = run(engine, *(scoring(str(n), prompt) for n, prompt in enumerate(prompts)))

    assert max(rows) == 7
    assert sum(rows) == sum(len(prompt) - 1 for prompt in prompts)
    for number, prompt in enumerate(prompts):
        assert_close(scores(last[str(number)]), reference(llama, prompt), prompt)


def test_others_run_while_one_scores_its_prompt(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SCORED_TOKENS_MAX", 4)
    engine = make_engine(llama)
    for n in range(2):  # the second waits for rows of logits
        engine.add(scoring(f"long{n}", [*range(1, 100)]))
    engine.add(Request("chat", [5, 6, 7], greedy(3)))

    ended = [output.id for _ in range(6) for output in engine.step() if output.finish_reason is not None]
    assert ended == ["chat"]


@pytest.mark.parametrize("seed", [1, 2])
def test_scores_and_other_answers_are_those_of_a_roomy_engine_where_memory_is_short(
    llama: Path, seed: int
) -> None:
    rng, requests = random.Random(seed), list[Request]()
    for n in range(14):
        shared = [7] * 9 if rng.random() < 0.5 else []
        prompt = [*shared, *(rng.randrange(256) for _ in range(rng.randint(1, 25)))]
        asks = {"prompt_logprobs": rng.randrange(3)} if rng.random() < 0.5 else {}
        priority = rng.choice(["interactive", "standard", "background"])
        requests.append(Request(str(n), prompt, greedy(rng.randint(1, 20)), priority=priority, **asks))
    roomy = run(make_engine(llama), *requests)
    cramped_engine = make_engine(llama, **CRAMPED)
    cramped = run(cramped_engine, *requests)

    assert cramped_engine.stats().preemptions > 0
    for request in requests:
        got, wanted = cramped[request.id], roomy[request.id]
        assert got.num_output_tokens == wanted.num_output_tokens
        if request.prompt_logprobs is None:
            assert got.prompt_logprobs is None
            continue
        values = [[score.logprob for score in scores(output)] for output in (got, wanted)]
        assert values[0] == pytest.approx(values[1], abs=2e-4)
        assert [score.top_ids for score in scores(got)] == [score.top_ids for score in scores(wanted)]


def test_a_scored_prompt_is_computed_whole_and_others_find_it(llama: Path) -> None:
    engine, prompt = make_engine(llama), [*range(2, 40)]
    complete(engine, Request("first", prompt, greedy(2)))
    before = engine.stats().tokens_reused

    last = run(engine, scoring("scored", prompt), Request("second", prompt, greedy(2)))

    assert last["scored"].num_cached_tokens == 0
    assert len(scores(last["scored"])) == len(prompt) - 1
    assert engine.stats().tokens_reused - before == 36, "the second finds the whole blocks of the prompt"


def test_in_deterministic_mode_scores_do_not_depend_on_what_they_are_computed_beside(llama: Path) -> None:
    prompt, others = [*range(5, 45)], [Request(f"o{n}", [n] * 20, greedy(9)) for n in range(6)]
    alone = run(make_engine(llama, deterministic=True), scoring("x", prompt))["x"]
    cramped = make_engine(llama, deterministic=True, **CRAMPED)
    beside = run(cramped, *others, scoring("x", prompt))["x"]

    assert scores(alone) == scores(beside)


def test_a_prompt_of_one_token_has_nothing_to_score(llama: Path) -> None:
    assert scores(run(make_engine(llama), scoring("x", [5]))["x"]) == []


def test_a_resumed_request_has_its_prompt_scored_again(llama: Path) -> None:
    prompt = [*range(30, 50)]
    whole = run(make_engine(llama), Request("x", prompt, greedy(6), prompt_logprobs=1))["x"]
    (completion,) = complete(make_engine(llama), Request("y", prompt, greedy(6)))

    resumed = Request(
        "x", prompt, greedy(6), prompt_logprobs=1, output_token_ids=tuple(completion.token_ids[:3])
    )
    again = run(make_engine(llama), resumed)["x"]

    assert [s.logprob for s in scores(again)] == pytest.approx([s.logprob for s in scores(whole)], abs=2e-4)


class Broken(ScriptedRunner):
    """Scores with NaN, and samples well."""

    def forward(self, chunks: Sequence[Chunk], promised: Tensor | None = None) -> Tensor:
        count = sum(chunk.num_scored for chunk in chunks)
        return torch.cat([super().forward(chunks), torch.full((count, VOCAB_SIZE), torch.nan)])


def test_a_prompt_whose_logits_are_no_numbers_fails_alone(llama: Path) -> None:
    tokenizer = load_tokenizer(str(llama))
    engine = engine_over(Broken([65, 66]), tokenizer)
    last = run(engine, scoring("x", [1, 2, 3]), Request("other", [4, 5], greedy(2)))

    assert last["x"].error == "the model's logits are not finite"
    assert last["other"].finish_reason == "length"


@pytest.mark.parametrize("count", [-1, 5000])
def test_a_number_of_alternatives_that_no_one_can_have_is_refused(llama: Path, count: int) -> None:
    with pytest.raises(InvalidRequest, match="prompt_logprobs must be None or 0 to 1024"):
        make_engine(llama).add(scoring("x", [1, 2], count))
