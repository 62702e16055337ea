"""Requests that part thoughts: texts, budgets, grammars, stops; across overlap, preemption, resumption."""

import json
import random
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import Completion, Engine, Grammar, Request, SamplingParams
from tests.unit.engine.running.guessing import with_guesses
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over
from tests.unit.engine.tiny.decoders import (
    EOS,
    collect,
    complete,
    greedy,
    make_cramped_engine,
    make_engine,
    run_to_end,
)
from tests.unit.engine.tiny.thinking import (
    BEGIN,
    END,
    HARMONY,
    OPENED,
    QWEN,
    TAGS,
    save_thinking,
    thinking_tokenizer,
)

USER = [{"role": "user", "content": "Add."}]
THOUGHT = "<think>\nI add: 3 + 4.\n</think>\n\n"


def saying(text: str, template: str = QWEN, tags: tuple[str, ...] = TAGS, **config: Any) -> Engine:
    """A model that says this and ends."""
    tokenizer = thinking_tokenizer(template, tags)
    size = tokenizer.num_tokens
    runner = ScriptedRunner([*tokenizer.encode(text), EOS], vocab_size=size)
    return engine_over(runner, tokenizer, vocab_size=size, num_blocks=128, context_length=512, **config)


def ask(engine: Engine, arguments: dict[str, Any] | None = None, **fields: Any) -> Request:
    sampling = fields.pop("sampling", None) or greedy(200, ignore_eos=False)
    prompt = engine.tokenizer.render_chat(USER, **(arguments or {}))
    return Request("r", prompt, sampling, **({"parts_thought": True} | fields))


def answered(engine: Engine, **fields: Any) -> Completion:
    engine.add(ask(engine, **fields))
    return run_to_end(engine)["r"]


def said(completion: Completion) -> tuple[str, str, str | None]:
    return completion.reasoning, completion.text, completion.finish_reason


@pytest.mark.parametrize("tags", [TAGS, ()], ids=["tokens", "text"])
@pytest.mark.parametrize("output_kind", ["delta", "final_only"])
@pytest.mark.parametrize("overlap_steps", [False, True])
def test_thought_and_answer_come_apart_without_the_lines_between_them(
    tags: tuple[str, ...], output_kind: Any, overlap_steps: bool
) -> None:
    engine = saying(f"{THOUGHT}7 is the sum\n", tags=tags, overlap_steps=overlap_steps)
    completion = answered(engine, output_kind=output_kind)

    assert said(completion) == ("I add: 3 + 4.", "7 is the sum\n", "stop")
    answer = engine.tokenizer.encode("\n\n7 is the sum\n")
    assert completion.num_reasoning_tokens == len(completion.token_ids) - len(answer) - 1


def test_deltas_of_the_thought_come_as_it_grows_and_none_has_a_part_of_the_marker() -> None:
    engine = saying(f"{THOUGHT}7", tags=())
    engine.add(ask(engine))
    deltas = []
    while engine.has_work:
        deltas += [output.reasoning for output in engine.step() if output.reasoning]

    assert "".join(deltas) == "I add: 3 + 4."
    assert len(deltas) > 8


def test_a_request_that_does_not_ask_for_it_gets_all_as_its_text() -> None:
    completion = answered(saying(f"{THOUGHT}7"), parts_thought=False)

    assert said(completion) == ("", f"{THOUGHT}7", "stop")
    assert completion.num_reasoning_tokens == 0


def test_without_a_thought_the_answer_is_as_it_was() -> None:
    for arguments in ({}, {"enable_thinking": False}):
        assert said(answered(saying("\n7"), arguments=arguments)) == ("", "\n7", "stop")


def test_a_thought_that_is_cut_off_leaves_no_answer() -> None:
    completion = answered(saying("abcdefgh</think>7", OPENED), sampling=greedy(4, ignore_eos=False))

    assert said(completion) == ("abcd", "", "length")
    assert completion.num_reasoning_tokens == 4


def test_channels_are_told_apart_and_several_thoughts_are_one() -> None:
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>7"
    )

    assert said(answered(saying(text, HARMONY))) == ("One.\nTwo.", "7", "stop")


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_stops_are_about_the_answer(overlap_steps: bool) -> None:
    engine = saying("<think>\n3 + 4; so\n</think>\n\n3 + 4 = 7; so", overlap_steps=overlap_steps)
    semicolon = engine.tokenizer.encode(";")[0]
    by_text = answered(engine, sampling=greedy(99, stop=(";", "\n\n"), ignore_eos=False))
    by_token = answered(engine, sampling=greedy(99, stop_token_ids=(semicolon, END), ignore_eos=False))

    assert said(by_text) == said(by_token) == ("3 + 4; so", "3 + 4 = 7", "stop")


@pytest.mark.parametrize("overlap_steps", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 4])
@pytest.mark.parametrize(
    "sampling", [greedy(60, ignore_eos=False), SamplingParams(max_tokens=60, seed=1, top_k=1)]
)
def test_a_thought_ends_at_its_budget(overlap_steps: bool, budget: int, sampling: SamplingParams) -> None:
    engine = saying("<think>abcdefgh", overlap_steps=overlap_steps)
    completion = answered(engine, sampling=replace(sampling, thinking_token_budget=budget))

    assert completion.token_ids[0] == BEGIN
    assert completion.token_ids[budget + 1] == END
    # The script goes on behind what was forced in place of its next token.
    assert said(completion) == ("abcdefgh"[:budget], "abcdefgh"[budget + 1 :], "stop")
    assert completion.num_reasoning_tokens == budget + 2


def test_a_thought_ends_at_its_budget_also_where_its_end_is_no_allowed_token() -> None:
    sampling = greedy(9, allowed_token_ids=(BEGIN, 65), thinking_token_budget=2)
    completion = answered(saying("<think>abcdefgh"), sampling=sampling)

    assert completion.token_ids == [BEGIN, 65, 65, END, *[65] * 5]


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_a_closing_of_several_tokens_is_forced_whole(overlap_steps: bool) -> None:
    engine = saying(f"<|channel|>analysis<|message|>{'a' * 60}", HARMONY, overlap_steps=overlap_steps)
    sampling = greedy(60, ignore_eos=False, thinking_token_budget=3)
    completion = answered(engine, sampling=sampling)
    closing = engine.tokenizer.encode("<|end|><|start|>assistant<|channel|>final<|message|>")

    assert completion.reasoning == "aaa"
    at = completion.token_ids.index(closing[0])
    assert completion.token_ids[at : at + len(closing)] == closing
    assert set(completion.text) == {"a"}


def grammar(*choices: str) -> Grammar:
    return Grammar("choice", json.dumps(choices))


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_a_grammar_is_about_the_answer_and_lets_the_model_think_before(overlap_steps: bool) -> None:
    engine = saying("<think>yes or no</think>??????", overlap_steps=overlap_steps)
    completion = answered(engine, grammar=grammar("no", "yes"))

    assert completion.reasoning == "yes or no"
    assert completion.text in ("no", "yes")
    assert completion.finish_reason == "stop"


def test_a_guided_answer_may_come_without_a_thought() -> None:
    for arguments in ({}, {"enable_thinking": False}):
        completion = answered(saying("yes"), arguments=arguments, grammar=grammar("no", "yes"))
        assert said(completion) == ("", "yes", "stop")


def test_a_thought_before_a_guided_answer_does_not_end_the_output() -> None:
    engine = saying("<think>a")  # then the end of the sequence, which would leave no answer
    sampling = greedy(20, ignore_eos=False, thinking_token_budget=5)
    completion = answered(engine, sampling=sampling, grammar=grammar("no", "yes"))

    assert EOS not in completion.token_ids[:-1]
    assert completion.text in ("no", "yes")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, which end no thought by themselves but by chance."""
    return save_thinking(tmp_path_factory.mktemp("thinker"))


def thinking_requests() -> list[Request]:
    """Prompts that open a thought, of each kind of sampling."""
    rng = random.Random(4)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.0, "logprobs": 1},
        {"temperature": 1.0, "seed": 4, "stop": ("e",)},
        {"temperature": 0.0, "repetition_penalty": 1.2},
    ]
    requests = []
    for number in range(10):
        prompt = [*(rng.randrange(256) for _ in range(rng.randint(2, 20))), BEGIN]
        params = SamplingParams(
            max_tokens=24, ignore_eos=True, thinking_token_budget=5 + number % 3, **kinds[number % 5]
        )
        guided = grammar("no", "yes, of course") if number == 7 else None
        requests.append(Request(f"r{number}", prompt, params, parts_thought=True, grammar=guided))
    return requests


def outcome(completion: Completion) -> tuple[Any, ...]:
    return (*said(completion), completion.token_ids, completion.num_reasoning_tokens, completion.logprobs)


def test_outputs_do_not_depend_on_overlap_preemption_or_what_they_are_batched_with(thinker: Path) -> None:
    requests = thinking_requests()
    alone = [outcome(*complete(make_engine(thinker), request)) for request in requests]
    cramped: dict[str, Any] = {"num_kv_blocks": 20, "max_num_seqs": 5}
    for overlap_steps in (False, True):
        engine = make_cramped_engine(thinker, overlap_steps=overlap_steps, **cramped)
        together = [outcome(completion) for completion in complete(engine, *requests)]
        assert engine.stats().preemptions > 0
        assert together == alone
    assert all(END in token_ids[:9] for _, _, _, token_ids, *_ in alone)


@pytest.mark.parametrize("budget", [None, 6])
def test_tokens_drafted_beside_thoughts_change_no_output(thinker: Path, budget: int | None) -> None:
    requests = [
        replace(request, sampling=replace(request.sampling, thinking_token_budget=budget))
        for request in thinking_requests()
    ]
    plain = complete(make_engine(thinker), *requests)
    answers = {request.id: answer.token_ids for request, answer in zip(requests, plain, strict=True)}

    engine = with_guesses(make_cramped_engine(thinker, num_kv_blocks=40), answers, random.Random(1))
    drafted = complete(engine, *requests)

    assert [said(answer) for answer in drafted] == [said(answer) for answer in plain]
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    assert engine.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("overlap_steps", [False, True])
@pytest.mark.parametrize("steps", [1, 4, 7, 12])
def test_a_resumed_request_goes_on_in_its_thought_or_answer(
    thinker: Path, steps: int, overlap_steps: bool
) -> None:
    requests = thinking_requests()
    whole = complete(make_engine(thinker), *requests)
    first = make_engine(thinker, overlap_steps=overlap_steps)
    for request in requests:
        first.add(request)
    early: dict[str, Completion] = {}
    for _ in range(steps):
        collect(early, first.step())
    left = [
        replace(
            request,
            output_token_ids=tuple(early[request.id].token_ids) if request.id in early else (),
            output_logprobs=tuple(early[request.id].logprobs) if request.id in early else (),
        )
        for request in requests
        if request.id not in early or not early[request.id].is_finished
    ]
    later = {completion.id: completion for completion in complete(make_engine(thinker), *left)}

    for completion in whole:
        if completion.id in later:
            assert outcome(later[completion.id]) == outcome(completion)


def test_a_sequence_without_thoughts_costs_no_state(thinker: Path) -> None:
    engine = make_engine(thinker)
    prompt: Seq[int] = engine.tokenizer.render_chat(USER, enable_thinking=False)
    engine.add(Request("r", prompt, greedy(3), parts_thought=True))
    engine.step()

    assert [live.sequence.thought for live in engine._live.values()] == [None]
