"""Overlapping steps change no output: a step is launched before the tokens of the last are read."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift_engine import Completion, Engine, Request, SamplingParams
from nightshift_engine.sampling.sampler import Sampler
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over
from tests.unit.engine.sampling.test_sampler import sequence
from tests.unit.engine.tiny.decoders import (
    EOS,
    VOCAB_SIZE,
    collect,
    complete,
    greedy,
    load_tokenizer,
    make_engine,
    run_to_end,
)

CRAMPED: dict[str, Any] = {"num_kv_blocks": 16, "max_num_batched_tokens": 16, "max_num_seqs": 5}


def random_request(number: int, rng: random.Random) -> Request:
    """Any way of sampling."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": rng.randrange(1000)},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
        {"temperature": 0.0, "stop": (chr(rng.randrange(97, 123)),)},
        {"temperature": 0.0, "logit_bias": {EOS: 8.0}},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.0, "min_tokens": 4, "logit_bias": {EOS: 8.0}},
        {"temperature": 1.0, "frequency_penalty": 1.5, "min_tokens": 4, "logprobs": 1},
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 1.0, "min_tokens": 4, "allowed_token_ids": (*range(40, 60), EOS), "logprobs": 1},
        {"temperature": 0.0, "logprobs": 3, "logprob_token_ids": (9, 200, 4)},
    ]
    shared = [7] * 9  # a beginning that several have, so that prefixes are found
    prompt = (shared if rng.random() < 0.4 else []) + [rng.randrange(256) for _ in range(rng.randint(1, 20))]
    kind = rng.choice(kinds)
    params = SamplingParams(max_tokens=rng.randint(kind.get("min_tokens", 1), 24), **kind)
    priority = rng.choice(["interactive", "standard", "background"])
    return Request(f"r{number}", prompt, params, priority=priority)


def result(completion: Completion) -> tuple[object, ...]:
    return (list(completion.token_ids), completion.text, completion.finish_reason)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_request_is_answered_as_without_overlap_in_a_cramped_engine(llama: Path, seed: int) -> None:
    requests = [random_request(n, random.Random(seed * 1000 + n)) for n in range(16)]
    answers = []
    for overlap_steps in (False, True):
        engine = make_engine(llama, overlap_steps=overlap_steps, **CRAMPED)
        answers.append([result(completion) for completion in complete(engine, *requests)])
        assert engine.stats().preemptions > 0
        assert engine.stats().blocks_free == engine.stats().blocks_total

    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", [3, 4])
def test_arrivals_and_aborts_change_no_other_request(llama: Path, seed: int) -> None:
    requests = [random_request(n, random.Random(seed * 1000 + n)) for n in range(12)]
    plain = {r.id: result(c) for r, c in zip(requests, complete(make_engine(llama), *requests), strict=True)}
    engine, rng = make_engine(llama, overlap_steps=True, **CRAMPED), random.Random(seed)
    completions: dict[str, Completion] = {}
    arriving, aborted = list(requests), set()
    while arriving or engine.has_work:
        if arriving and rng.random() < 0.5:
            engine.add(arriving.pop(0))
        if rng.random() < 0.1:
            victim = rng.choice(requests).id
            engine.abort(victim)
            aborted.add(victim)
        collect(completions, engine.step())
        engine.check_integrity()

    for request in requests:
        got, wanted = result(completions[request.id]), plain[request.id]
        if completions[request.id].finish_reason == "abort":
            assert request.id in aborted
            tokens: Any = got[0]
            assert tokens == wanted[0][: len(tokens)]  # type: ignore[index]
        else:
            assert got == wanted


def test_an_aborted_id_can_be_used_again_while_its_step_is_in_flight(llama: Path) -> None:
    engine = make_engine(llama, overlap_steps=True)
    engine.add(Request("a", [5, 6, 7], greedy(20)))
    engine.step()
    engine.step()
    engine.abort("a")
    engine.step()
    second = Request("a", [50, 60], greedy(6))
    engine.add(second)

    assert result(run_to_end(engine)["a"]) == result(complete(make_engine(llama), second)[0])


class WatchedRunner(ScriptedRunner):
    """Notes which passes were given tokens that were not read yet."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(script)
        self.passes: list[str] = []

    def forward(self, chunks: Any, promised: Any = None) -> torch.Tensor:
        ahead = any(chunk.sequence.num_promised for chunk in chunks)
        self.passes.append("ahead" if ahead else "after")
        assert not ahead or promised is not None
        return super().forward(chunks, promised)


def watched(llama: Path, script: list[int], request: Request, **config: Any) -> tuple[list[str], Completion]:
    runner = WatchedRunner(script)
    engine = engine_over(runner, load_tokenizer(str(llama)), **config)
    return runner.passes, complete(engine, request)[0]


def test_a_step_is_launched_before_the_last_is_read_and_the_surplus_token_is_discarded(llama: Path) -> None:
    passes, completion = watched(
        llama, [65, 66, EOS, 67], Request("a", [1], greedy(9, ignore_eos=False)), overlap_steps=True
    )

    assert list(completion.token_ids) == [65, 66, EOS]
    assert passes == ["after", "ahead", "ahead", "ahead"]
    without, _ = watched(llama, [65, 66, 67], Request("a", [1], greedy(3)))
    assert without == ["after"] * 3, "on a CPU steps do not overlap unless asked"


@pytest.mark.parametrize(
    "params",
    [
        {"logprobs": 1},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.2, "temperature": 1.0, "top_p": 0.5},
        {"min_tokens": 2},
        {"logit_bias": {65: 1.0}},
        {"allowed_token_ids": (65, 66, 67)},
        {"logprobs": 1, "logprob_token_ids": (9,)},
    ],
)
def test_no_way_of_sampling_makes_a_step_wait_for_the_last(llama: Path, params: dict[str, Any]) -> None:
    request = Request("a", [1], SamplingParams(**{"temperature": 0.0, "max_tokens": 3} | params))
    passes, completion = watched(llama, [65, 66, 67], request, overlap_steps=True)

    assert passes == ["after", "ahead", "ahead"], "an end that is known beforehand costs no surplus token"
    assert (len(completion.token_ids), completion.finish_reason) == (3, "length")


def test_a_launch_that_fails_loses_neither_the_step_in_flight_nor_itself(llama: Path) -> None:
    runner = WatchedRunner([65, 66, 67, 68, 69])
    engine: Engine = engine_over(runner, load_tokenizer(str(llama)), overlap_steps=True)
    engine.add(Request("a", [1], greedy(5)))
    engine.step()
    engine.step()
    runner.fail_next = True
    with pytest.raises(RuntimeError, match="kernel launch failed"):
        engine.step()

    tokens = [token for _ in range(6) for output in engine.step() for token in output.token_ids]
    assert tokens == [66, 67, 68, 69]  # 65 came with the second step


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 0.0, "logit_bias": {3: 1.0}},
        {"temperature": 0.0, "presence_penalty": 1.0},
        {"temperature": 1.0, "allowed_token_ids": (3, 4), "logprobs": 2, "logprob_token_ids": (3, 9)},
    ],
)
def test_choosing_reads_nothing_back_from_the_device(params: dict[str, Any]) -> None:
    """Any look at a value raises, as the meta device has nothing to read."""
    logits = torch.empty(3, VOCAB_SIZE, device="meta")
    rows = [sequence(**params), sequence(temperature=0.0), sequence(temperature=1.0)]

    assert Sampler([EOS]).choose(logits, rows).tokens.shape == (3,)
