"""Drafted tokens change no output: the model samples every token, each with its own number."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nightshift_engine import Completion, Engine, Grammar, Request, SamplingParams
from nightshift_engine.errors import InvalidConfig
from tests.unit.engine.guidance.random_schemas import check, grammar_of, random_schema
from tests.unit.engine.running.carrying import resumed, save
from tests.unit.engine.running.guessing import (
    Guessing,
    OfFixedCost,
    speculating,
    with_fixed_cost,
    with_guesses,
)
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over
from tests.unit.engine.running.test_overlap import CRAMPED, WatchedRunner, random_request, result
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    EOS,
    VOCAB_SIZE,
    byte_tokenizer,
    collect,
    complete,
    engine_config,
    greedy,
    load_tokenizer,
    make_engine,
    run_to_end,
    save_model,
)

WINDOWED: dict[str, Any] = {"sliding_window": 24, "max_position_embeddings": 256}


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose next token depends on the last alone, so that it copies what it has read before."""
    directory = save_model(tmp_path_factory.mktemp("copying"), max_position_embeddings=1024)
    model = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        following = torch.arange(VOCAB_SIZE)
        following[:256] = following[:256].roll(-1)
        model.lm_head.weight[following] = model.model.embed_tokens.weight
    model.save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    return directory


def with_logprobs(completion: Completion) -> tuple[object, ...]:
    close = [(round(token.logprob, 3), token.top_ids) for token in completion.logprobs]
    return (*result(completion), close)


@pytest.mark.parametrize(("seed", "overlap_steps"), [(1, False), (2, True), (3, False)])
def test_every_request_is_answered_as_without_drafts_in_a_cramped_engine(
    llama: Path, seed: int, overlap_steps: bool
) -> None:
    requests = [random_request(n, random.Random(seed * 1000 + n)) for n in range(16)]
    plain = complete(make_engine(llama), *requests)
    guesses = {request.id: answer.token_ids for request, answer in zip(requests, plain, strict=True)}
    engine = make_engine(llama, overlap_steps=overlap_steps, **CRAMPED)
    answers = complete(with_guesses(engine, guesses, random.Random(seed)), *requests)

    assert [with_logprobs(answer) for answer in answers] == [with_logprobs(answer) for answer in plain]
    stats = engine.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    assert stats.preemptions > 0
    assert stats.blocks_free == stats.blocks_total


@pytest.mark.parametrize("model_type", mostly_exhaustive(["mistral", "gemma2", "gpt2"], default=["gemma2"]))
def test_windows_give_their_blocks_back_and_change_nothing(model_type: str, tmp_path: Path) -> None:
    without = ("intermediate_size", "num_key_value_heads") if model_type == "gpt2" else ()
    directory = save_model(tmp_path, model_type, without=without, **(WINDOWED if not without else {}))
    requests = [Request(f"{n}", [n, *range(20 * n, 20 * n + 15)], greedy(60)) for n in range(6)]
    plain = complete(make_engine(directory), *requests)
    guesses = {request.id: answer.token_ids for request, answer in zip(requests, plain, strict=True)}
    engine = make_engine(directory, num_kv_blocks=60, max_num_seqs=5)
    answers = complete(with_guesses(engine, guesses, random.Random(1)), *requests)

    assert [result(answer) for answer in answers] == [result(answer) for answer in plain]
    assert engine.stats().num_accepted_tokens > 0
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_a_prefix_that_was_drafted_is_found_by_others(llama: Path) -> None:
    first = Request("a", list(range(10)), greedy(40))
    [answer] = complete(make_engine(llama), first)
    engine = with_guesses(make_engine(llama), {"a": answer.token_ids}, random.Random(4))
    complete(engine, first)
    follow_up = Request("b", [*range(10), *answer.token_ids], greedy(8))
    [second] = complete(engine, follow_up)

    assert second.num_cached_tokens == 48, "all full blocks but for the last token, which was not computed"
    assert result(second) == result(complete(make_engine(llama), follow_up)[0])


def test_a_resumed_request_goes_on_as_without_drafts(llama: Path) -> None:
    requests = [random_request(n, random.Random(7000 + n)) for n in range(8)]
    plain = complete(make_engine(llama), *requests)
    guesses = {request.id: answer.token_ids for request, answer in zip(requests, plain, strict=True)}
    engine = with_guesses(make_engine(llama), guesses, random.Random(5))
    completions: dict[str, Completion] = {}
    for request in requests:
        engine.add(request)
    for _ in range(3):
        collect(completions, engine.step())
    other = with_guesses(make_engine(llama), guesses, random.Random(6))
    moved = complete(other, *resumed(other, requests, save(engine, requests, completions)))
    for completion in moved:
        completions[completion.id] = completion

    assert [result(completions[request.id]) for request in requests] == [result(answer) for answer in plain]


def test_arrivals_and_aborts_change_no_other_request(llama: Path) -> None:
    requests = [random_request(n, random.Random(4000 + n)) for n in range(12)]
    plain = {r.id: c for r, c in zip(requests, complete(make_engine(llama), *requests), strict=True)}
    guesses, chance = {id: answer.token_ids for id, answer in plain.items()}, random.Random(9)
    engine = with_guesses(make_engine(llama, overlap_steps=True, **CRAMPED), guesses, chance)
    completions: dict[str, Completion] = {}
    arriving = list(requests)
    while arriving or engine.has_work:
        if arriving and chance.random() < 0.5:
            engine.add(arriving.pop(0))
        if chance.random() < 0.1:
            engine.abort(chance.choice(requests).id)
        collect(completions, engine.step())
        engine.check_integrity()

    for request in requests:
        got = completions[request.id]
        if got.finish_reason == "abort":
            assert got.token_ids == plain[request.id].token_ids[: len(got.token_ids)]
        else:
            assert result(got) == result(plain[request.id])


class CountedRunner(ScriptedRunner):
    """Notes how many rows of logits and tokens each step has."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(script)
        self.rows: list[int] = []
        self.tokens: list[int] = []

    def forward(self, chunks: Any, promised: Any = None) -> torch.Tensor:
        logits = super().forward(chunks, promised)
        self.rows.append(len(logits))
        self.tokens.append(sum(chunk.num_tokens + len(chunk.draft) for chunk in chunks))
        return logits


def scripted(
    llama: Path, script: list[int], *requests: Request, **config: Any
) -> tuple[CountedRunner, list[Completion], Engine]:
    runner = CountedRunner(script)
    engine = engine_over(runner, load_tokenizer(str(llama)), **config)
    speculating(engine, Guessing({r.id: script * 9 for r in requests}, random.Random(2), right=1.0))
    return runner, complete(engine, *requests), engine


def test_a_stop_string_and_an_end_inside_an_accepted_run_end_the_output(llama: Path) -> None:
    script = [*load_tokenizer(str(llama)).encode("ABCDEF"), EOS, 71, 72, 73]
    ended = Request("ended", [1], greedy(50, ignore_eos=False))
    stopped = Request("stopped", [1], greedy(50, stop=("DE",)))
    runner, (at_end, at_stop), engine = scripted(llama, script, ended, stopped)

    assert (at_end.text, at_end.token_ids, at_end.finish_reason) == ("ABCDEF", script[:7], "stop")
    assert (at_stop.text, at_stop.token_ids, at_stop.finish_reason) == ("ABC", script[:5], "stop")
    assert len(runner.rows) < 7
    assert engine.stats().num_accepted_tokens > 0


def test_an_output_is_as_long_as_it_may_be(llama: Path) -> None:
    for max_tokens in (1, 2, 9):
        _, [completion], _ = scripted(llama, [65, 66, 67], Request("a", [1], greedy(max_tokens)))
        assert len(completion.token_ids) == max_tokens
        assert completion.finish_reason == "length"


def test_a_step_has_no_more_rows_and_tokens_than_configured(llama: Path) -> None:
    requests = [Request(f"{n}", [1] * (2 + n), greedy(30)) for n in range(4)]
    runner, _, engine = scripted(llama, [65, 66, 67], *requests, max_num_seqs=6, max_num_batched_tokens=7)

    assert max(runner.rows) == 6
    assert max(runner.tokens) == 7
    assert engine.stats().tokens_computed == sum(runner.tokens)
    assert engine.stats().num_accepted_tokens > 0


def test_a_step_that_fails_loses_no_token(llama: Path) -> None:
    request = Request("a", [1], greedy(40))
    runner = CountedRunner([65, 66, 67])
    engine = engine_over(runner, load_tokenizer(str(llama)))
    speculating(engine, Guessing({"a": [65, 66, 67] * 20}, random.Random(2), right=1.0))
    engine.add(request)
    completions: dict[str, Completion] = {}
    for number in range(4):
        collect(completions, engine.step())
        runner.fail_next = number > 0
        if runner.fail_next:
            with pytest.raises(RuntimeError, match="kernel launch"):
                engine.step()
            engine.check_integrity()
    while engine.has_work:
        collect(completions, engine.step())
        engine.check_integrity()

    assert completions["a"].token_ids == ([65, 66, 67] * 20)[:40]


def test_steps_overlap_while_drafting_rests(llama: Path) -> None:
    runner = WatchedRunner(list(range(60, 100)))
    engine = engine_over(runner, load_tokenizer(str(llama)), overlap_steps=True)
    speculator = OfFixedCost()
    speculator._attempt_s = 0.001  # a tenth of a step
    speculating(engine, speculator)
    complete(engine, Request("a", [1], greedy(38)))

    assert engine.stats().num_drafts == 0
    assert 30 <= runner.passes.count("ahead") < 38


def copied(number: int, **params: Any) -> Request:
    """The prompt holds what the model is going to write, with a flaw now and then."""
    text = [(7 * number + place) % 256 for place in range(200)]
    for place in range(9, 200, 40):
        text[place] = 255 - text[place]
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 120, "ignore_eos": True} | params)
    return Request(f"c{number}", [*text, *text[:6]], sampling, group="job")


def run_both(directory: Path, *requests: Request, **config: Any) -> tuple[Engine, Engine]:
    """Engines that have answered alike, the first with drafts."""
    engines = [
        with_fixed_cost(make_engine(directory, speculation="auto", **config)),
        make_engine(directory, **config),
    ]
    drafting, plain = (complete(engine, *requests) for engine in engines)
    assert [with_logprobs(answer) for answer in drafting] == [with_logprobs(answer) for answer in plain]
    return engines[0], engines[1]


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_work_that_copies_its_prompt_takes_fewer_steps(copying: Path, overlap_steps: bool) -> None:
    drafting, plain = run_both(
        copying, copied(1), copied(2, logprobs=2, presence_penalty=0.1), overlap_steps=overlap_steps
    )

    assert drafting.stats().num_accepted_tokens > 50
    assert drafting.stats().steps < plain.stats().steps


def test_what_a_grammar_forces_is_drafted_and_the_text_is_that_of_plain_decoding(copying: Path) -> None:
    names = ["identification", "classification", "recommendation"]
    grammar = Grammar("regex", ", ".join(f"{name}: [0-9]{{2,3}}" for name in names))
    requests = [
        Request(
            f"g{n}",
            [1, 2, n],
            SamplingParams(temperature=t, seed=n, max_tokens=300, min_tokens=4, logprobs=1),
            grammar=grammar,
        )
        for n, t in enumerate([0.0, 1.0, 1.0])
    ]
    drafting, plain = run_both(copying, *requests)

    assert drafting.stats().num_accepted_tokens > 100
    assert drafting.stats().steps < plain.stats().steps / 2


def test_objects_by_a_schema_are_those_of_plain_decoding(copying: Path) -> None:
    properties = {name: {"enum": [f"{name} {n}" for n in range(3)]} for name in ("street", "town")}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    grammar = Grammar("json_schema", json.dumps(schema))
    requests = [
        Request(f"g{n}", [1, n], SamplingParams(temperature=t, seed=n, max_tokens=300), grammar=grammar)
        for n, t in enumerate([0.0, 0.5, 1.0])
    ]
    drafting, _ = run_both(copying, *requests)

    assert drafting.stats().num_accepted_tokens > 10


def test_random_schemas_are_answered_as_without_drafts(copying: Path) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(16)]
    requests = [
        Request(f"g{n}", [1, n], SamplingParams(temperature=1.0, max_tokens=800), grammar=grammar_of(schema))
        for n, schema in enumerate(schemas)
    ]
    plain = complete(make_engine(copying, num_kv_blocks=8000), *requests)
    guesses = {request.id: answer.token_ids for request, answer in zip(requests, plain, strict=True)}
    engine = with_guesses(make_engine(copying, num_kv_blocks=8000), guesses, random.Random(3))
    answers = complete(engine, *requests)

    assert [result(answer) for answer in answers] == [result(answer) for answer in plain]
    assert engine.stats().num_accepted_tokens > 0
    for schema, answer in zip(schemas, answers, strict=True):
        if answer.finish_reason == "stop":
            check(answer.text, schema)


def test_rows_of_one_job_learn_from_one_another(copying: Path) -> None:
    requests = [
        Request(f"{n}", [7, 8, 9, 10, 11, 12], greedy(60), group="job", priority="background")
        for n in range(6)
    ]
    engine = with_fixed_cost(make_engine(copying, speculation="auto", enable_prefix_reuse=False))
    complete(engine, *requests[:1])
    before = engine.stats()
    complete(engine, *requests[1:])

    assert before.num_accepted_tokens == 0, "nothing in its own tokens repeats itself"
    assert engine.stats().num_accepted_tokens > 100


def test_nothing_is_drafted_unless_asked(copying: Path) -> None:
    engine = make_engine(copying)
    complete(engine, copied(1))

    assert engine.stats().num_draft_tokens == 0


def test_another_kind_of_speculation_is_refused_by_name(llama: Path) -> None:
    with pytest.raises(InvalidConfig, match="speculation must be one of auto, off, got 'eagle'"):
        engine_config(llama, speculation="eagle")


def test_a_stream_gets_every_token_once(copying: Path) -> None:
    engine = with_fixed_cost(make_engine(copying, speculation="auto"))
    engine.add(copied(1))
    lengths = []
    while engine.has_work:
        outputs = engine.step()
        lengths += [output.num_output_tokens for output in outputs]

    assert lengths == list(range(1, 121))
    assert run_to_end(engine) == {}
