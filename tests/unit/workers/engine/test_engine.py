"""The engine at its boundary: requests in, outputs out, and what happens in between when things go wrong."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.unit.workers.engine.tiny_models import (
    CONTEXT,
    EOS,
    VOCAB_SIZE,
    byte_tokenizer,
    collect,
    complete,
    greedy,
    load_cramped_engine,
    load_engine,
    run_to_end,
    save_model,
)
from workers.engine import (
    Completion,
    DuplicateRequest,
    Engine,
    EngineConfig,
    EngineDraining,
    InvalidConfig,
    InvalidRequest,
    ModelLoadFailed,
    PromptTooLong,
    Request,
    SamplingParams,
)
from workers.engine.admission import ModelFacts
from workers.engine.batching.batcher import Chunk
from workers.engine.batching.kv_blocks import BlockPool
from workers.engine.detokenizer import TextStream
from workers.engine.engine import Runner
from workers.engine.tokenizer import Tokenizer

EOS_NEXT = {EOS: 100.0}


@pytest.fixture
def engine(llama: Path) -> Engine:
    return load_engine(llama)


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    print(f"prompt seed {seed}")
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randint(2, 25))] for _ in range(count)]


class ScriptedRunner:
    """A model that says the same scripted tokens to everyone; `fail_next` makes its next pass fail."""

    def __init__(self, script: Seq[int], *, vocab_size: int = VOCAB_SIZE) -> None:
        self.script, self.vocab_size = script, vocab_size
        self.fail_next = False
        self.wiped: list[list[int]] = []

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("kernel launch failed")
        rows = [self._row(chunk.sequence.next_output_index) for chunk in chunks if chunk.is_last]
        return torch.stack(rows) if rows else torch.zeros(0, self.vocab_size)

    def forget_values(self, blocks: list[int]) -> None:
        self.wiped.append(blocks)

    def _row(self, index: int) -> Tensor:
        token = self.script[index % len(self.script)]
        return torch.nn.functional.one_hot(torch.tensor(token), self.vocab_size).float()


def scripted(llama: Path, text: str, **config: Any) -> Engine:
    """An engine whose model recites `text` and then ends the sequence."""
    tokenizer = Tokenizer.load(str(llama))
    return engine_over(ScriptedRunner([*tokenizer.encode(text), EOS]), tokenizer, **config)


def engine_over(runner: Runner, tokenizer: Tokenizer, **config: Any) -> Engine:
    facts = ModelFacts("scripted", VOCAB_SIZE, CONTEXT, frozenset({EOS}))
    return Engine(
        runner, tokenizer, facts, BlockPool(64, 4), EngineConfig("scripted", block_size=4, **config)
    )


# What comes out


def test_outputs_add_up_to_the_completion(llama: Path) -> None:
    engine = scripted(llama, "night 🌙")
    engine.add(Request("a", [1, 2, 3], SamplingParams(temperature=0)))
    outputs = []
    while engine.has_work:
        outputs += engine.step()

    assert "".join(output.text for output in outputs) == "night 🌙"
    assert [output.text for output in outputs][-5:] == ["", "", "", "🌙", ""]
    assert [output.num_output_tokens for output in outputs] == list(range(1, 12))
    assert {output.num_prompt_tokens for output in outputs} == {3}
    assert [output.finish_reason for output in outputs] == [None] * 10 + ["stop"]
    assert outputs[-1].token_ids == [EOS]


def test_an_end_of_sequence_can_be_ignored(llama: Path) -> None:
    engine = scripted(llama, "ab")
    done = complete(engine, Request("a", [1], greedy(7, ignore_eos=True)))[0]

    assert done.text == "ababa"
    assert done.finish_reason == "length"
    assert done.token_ids.count(EOS) == 2


@pytest.mark.parametrize(
    ("stop", "text"),
    [("two", "one "), ("e t", "on"), ("three four", "one two "), ("never", "one two three four")],
)
def test_a_stop_string_ends_the_text_before_itself(llama: Path, stop: str, text: str) -> None:
    engine = scripted(llama, "one two three four")
    done = complete(engine, Request("a", [1], SamplingParams(temperature=0, stop=(stop,))))[0]

    assert done.text == text
    assert done.finish_reason == "stop"


def test_a_stop_token_ends_the_text_before_itself(llama: Path) -> None:
    engine = scripted(llama, "one;two")
    semicolon = engine.tokenizer.encode(";")
    done = complete(
        engine, Request("a", [1], SamplingParams(temperature=0, stop_token_ids=tuple(semicolon)))
    )[0]

    assert (done.text, done.finish_reason) == ("one", "stop")
    assert done.token_ids[-1:] == semicolon


def test_text_held_back_for_a_stop_string_is_given_out_at_the_length_limit(llama: Path) -> None:
    engine = scripted(llama, "maybe stop")
    done = complete(engine, Request("a", [1], greedy(8, stop=("stopping",))))[0]

    assert (done.text, done.finish_reason) == ("maybe st", "length")


def test_stop_strings_are_not_looked_for_before_min_tokens(llama: Path) -> None:
    engine = scripted(llama, "aXbXc")
    done = complete(engine, Request("a", [1], greedy(20, stop=("X",), min_tokens=3)))[0]

    assert done.text == "aXb"


def test_min_tokens_puts_off_the_end_of_sequence(engine: Engine) -> None:
    params = greedy(20, ignore_eos=False, min_tokens=3, logit_bias=EOS_NEXT)
    done = complete(engine, Request("a", [1, 2], params))[0]

    assert len(done.token_ids) == 4
    assert done.token_ids[-1] == EOS


def test_max_tokens_beyond_the_context_is_clipped_to_it(engine: Engine) -> None:
    done = complete(engine, Request("a", list(range(CONTEXT - 5)), greedy(1000)))[0]

    assert len(done.token_ids) == 5
    assert done.finish_reason == "length"


def test_max_tokens_beyond_the_kv_memory_is_clipped_to_it(llama: Path) -> None:
    engine = load_engine(llama, num_kv_blocks=5)
    done = complete(engine, Request("a", list(range(10)), greedy(1000)))[0]

    assert len(done.token_ids) == 10
    assert done.finish_reason == "length"


def test_a_shared_beginning_is_reused_and_changes_nothing(engine: Engine, llama: Path) -> None:
    beginning = list(range(40, 60))
    first, second = Request("a", [*beginning, 1, 2], greedy(8)), Request("b", [*beginning, 3], greedy(8))
    fresh = load_engine(llama, enable_prefix_reuse=False)

    reused = [complete(engine, first)[0], complete(engine, second)[0]]

    assert [done.num_cached_tokens for done in reused] == [0, 20]
    assert [done.token_ids for done in reused] == [done.token_ids for done in complete(fresh, first, second)]
    assert fresh.stats().tokens_reused == 0
    assert engine.stats().tokens_reused == 20


def test_sampled_output_does_not_depend_on_company_or_cramped_memory(llama: Path) -> None:
    requests = [
        Request(
            str(n),
            prompt,
            SamplingParams(seed=n, max_tokens=15, top_p=0.9, presence_penalty=0.5, ignore_eos=True),
        )
        for n, prompt in enumerate(prompts(5))
    ]
    roomy = load_engine(llama)
    cramped = load_cramped_engine(llama, num_kv_blocks=12, max_num_batched_tokens=6)

    alone = [complete(roomy, request)[0].token_ids for request in requests]

    assert [done.token_ids for done in complete(cramped, *requests)] == alone
    assert cramped.stats().preemptions > 0


def test_an_interactive_request_overtakes_bulk_that_fills_the_engine(llama: Path) -> None:
    engine = load_engine(llama, max_num_seqs=2)
    for n, prompt in enumerate(prompts(4)):
        engine.add(Request(f"bulk-{n}", prompt, greedy(30), priority="background"))
    completions: dict[str, Completion] = {}
    collect(completions, engine.step())
    engine.add(Request("urgent", [5, 6, 7], greedy(3), priority="interactive"))

    first = engine.step()
    collect(completions, first)
    assert "urgent" in {output.id for output in first}
    collect(completions, engine.step())
    collect(completions, engine.step())
    assert completions["urgent"].is_finished
    assert engine.stats().preemptions == 1
    assert len(run_to_end(engine)) == 4


# What is refused


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers(engine: Engine) -> None:
    with pytest.raises(PromptTooLong, match=r"128 tokens and one new token exceed the context of 128 tokens"):
        engine.add(Request("a", [1] * CONTEXT, greedy(1)))
    engine.add(Request("a", [1] * (CONTEXT - 1), greedy(1)))
    assert len(run_to_end(engine)["a"].token_ids) == 1


def test_a_prompt_that_fills_the_kv_memory_is_refused_with_the_numbers(llama: Path) -> None:
    engine = load_engine(llama, num_kv_blocks=5)
    with pytest.raises(PromptTooLong, match=r"20 tokens and one new token exceed the KV memory of 20 tokens"):
        engine.add(Request("a", [1] * 20, greedy(1)))
    engine.add(Request("a", [1] * 19, greedy(1)))
    assert len(run_to_end(engine)["a"].token_ids) == 1


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request("a", []), "empty prompt"),
        (Request("a", [VOCAB_SIZE]), "prompt has token id 258, outside the vocabulary of 258"),
        (Request("a", [-1]), "prompt has token id -1"),
        (Request("a", [1.5]), "prompt has a token id that is none: 'float'"),  # type: ignore[list-item]
        (Request("a", [10**30]), "prompt has token id 1000000"),
        (Request("a", [1], output_token_ids=[999]), "output has token id 999"),
        (Request("a", [1], output_token_ids=["x"]), "output has a token id that is none"),  # type: ignore[list-item]
        (Request("a", [1], SamplingParams(logit_bias={900: 1.0})), "logit_bias has token id 900"),
        (Request("a", [1], SamplingParams(stop_token_ids=(900,))), "stop_token_ids has token id 900"),
        (Request("a", [1], priority="urgent"), "priority must be one of interactive, standard, background"),  # type: ignore[arg-type]
    ],
)
def test_a_request_that_cannot_run_is_refused_and_leaves_no_trace(
    engine: Engine, request_: Request, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        engine.add(request_)
    assert not engine.has_work
    engine.add(Request("a", [1], greedy(1)))


def test_an_id_in_use_is_refused_until_it_is_done(engine: Engine) -> None:
    engine.add(Request("a", [1], greedy(2)))
    with pytest.raises(DuplicateRequest, match="'a' is already in the engine"):
        engine.add(Request("a", [2], greedy(2)))
    run_to_end(engine)
    engine.add(Request("a", [2], greedy(2)))


# Aborting


def test_an_abort_takes_effect_at_the_next_step_and_is_reported(engine: Engine) -> None:
    for id in ("running", "other"):
        engine.add(Request(id, [1, 2, 3], greedy(10)))
    engine.step()
    engine.abort("running")

    outputs = {output.id: output for output in engine.step()}

    assert outputs["running"].finish_reason == "abort"
    assert outputs["running"].token_ids == []
    assert outputs["running"].error is None
    assert outputs["other"].finish_reason is None
    engine.check_integrity()


def test_a_request_aborted_before_it_started_never_runs(engine: Engine) -> None:
    engine.add(Request("a", [1, 2, 3], greedy(10)))
    engine.abort("a")

    assert [output.finish_reason for output in engine.step()] == ["abort"]
    assert not engine.has_work
    assert engine.stats().tokens_computed == 0


def test_aborting_what_is_not_there_is_ignored(engine: Engine) -> None:
    engine.abort("never seen")
    complete(engine, Request("a", [1], greedy(1)))
    engine.abort("a")

    assert engine.step() == []


def test_aborting_twice_reports_once(engine: Engine) -> None:
    engine.add(Request("a", [1], greedy(10)))
    engine.step()
    engine.abort("a")
    engine.abort("a")

    assert len(engine.step()) == 1
    assert engine.step() == []


# Draining and resuming


def test_a_drained_engine_gives_everything_back_and_takes_nothing(llama: Path) -> None:
    engine = load_engine(llama, max_num_seqs=2)
    for n, prompt in enumerate(prompts(3)):
        engine.add(Request(str(n), prompt, greedy(50)))
    completions: dict[str, Completion] = {}
    for _ in range(4):
        collect(completions, engine.step())
    engine.add(Request("late", [1, 2], greedy(5)))
    engine.abort("1")

    unfinished = engine.drain()

    assert [state.id for state in unfinished] == ["0", "2", "late"]
    assert list(unfinished[0].request.output_token_ids) == completions["0"].token_ids
    assert list(unfinished[1].request.output_token_ids) == []
    assert not engine.has_work
    assert engine.stats().blocks_free == engine.stats().blocks_total
    assert engine.step() == []
    engine.check_integrity()
    with pytest.raises(EngineDraining):
        engine.add(Request("more", [1], greedy(1)))


@pytest.mark.parametrize(
    "params", [greedy(18), SamplingParams(max_tokens=18, ignore_eos=True, repetition_penalty=1.3)]
)
@pytest.mark.parametrize("steps", [1, 2, 7, 17, 19])
def test_a_drained_request_continues_elsewhere_as_if_nothing_had_happened(
    llama: Path, params: SamplingParams, steps: int
) -> None:
    requests = [Request(str(n), prompt, params) for n, prompt in enumerate(prompts(4))]
    expected = complete(load_engine(llama), *requests)
    here, there = load_engine(llama, max_num_batched_tokens=20), load_engine(llama, block_size=8)
    for request in requests:
        here.add(request)
    finished: dict[str, Completion] = {}
    for _ in range(steps):
        collect(finished, here.step())

    for state in here.drain():
        finished.pop(state.id, None)  # its outputs so far; the other engine repeats them
        assert there.resume(state), "nothing differs"
    finished |= run_to_end(there)

    for wanted in expected:
        assert finished[wanted.id].token_ids == wanted.token_ids
        assert finished[wanted.id].text == wanted.text
        assert finished[wanted.id].finish_reason == wanted.finish_reason


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_resumed_request_tells_its_whole_text_once(llama: Path, cut: int) -> None:
    """Cut anywhere, in the middle of an emoji or of a stop string too."""
    params = greedy(30, stop=("END.",), ignore_eos=False)
    script = "a🌙EN b END. c"
    whole = complete(scripted(llama, script), Request("a", [1], params))[0]
    resumed = complete(
        scripted(llama, script), Request("a", [1], params, output_token_ids=whole.token_ids[:cut])
    )[0]

    assert whole.text == "a🌙EN b "
    assert (resumed.text, resumed.token_ids) == (whole.text, whole.token_ids)


def test_a_resumed_request_that_was_already_done_ends_without_computing(llama: Path) -> None:
    done = complete(scripted(llama, "hello END"), Request("a", [1], greedy(30, stop=("END",))))[0]
    engine = scripted(llama, "hello END")
    cases = {
        "stop string": Request(
            "stop string", [1], greedy(30, stop=("END",)), output_token_ids=done.token_ids
        ),
        "eos": Request("eos", [1], SamplingParams(), output_token_ids=[*done.token_ids, EOS]),
        "length": Request("length", [1], greedy(3), output_token_ids=done.token_ids),
    }
    completions = {request.id: complete(engine, request)[0] for request in cases.values()}

    assert (completions["stop string"].text, completions["stop string"].finish_reason) == ("hello ", "stop")
    assert (completions["eos"].text, completions["eos"].finish_reason) == ("hello END", "stop")
    assert (completions["length"].text, completions["length"].finish_reason) == ("hel", "length")
    assert engine.stats().tokens_computed == 0


# Threads


def test_requests_come_and_go_from_many_threads_while_the_engine_steps(llama: Path) -> None:
    engine = load_engine(llama, num_kv_blocks=40, max_num_seqs=6)
    everyone_has_added = threading.Barrier(5)

    def send(name: str) -> None:
        for n in range(6):
            engine.add(Request(f"{name}-{n}", [n + 1, n + 2], greedy(6)))
        engine.abort(f"{name}-5")
        everyone_has_added.wait(timeout=30)

    threads = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    completions: dict[str, Completion] = {}
    while everyone_has_added.n_waiting < 4 or engine.has_work:
        collect(completions, engine.step())
    everyone_has_added.wait(timeout=30)
    for thread in threads:
        thread.join()
    completions |= run_to_end(engine)

    assert len(completions) == 24
    assert all(done.is_finished for done in completions.values())
    assert all(len(done.token_ids) == 6 for done in completions.values() if done.finish_reason == "length")
    engine.check_integrity()


# Failures


def test_a_pass_that_fails_is_tried_again_and_loses_nothing(llama: Path) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = ScriptedRunner([*tokenizer.encode("fine"), EOS])
    engine = engine_over(runner, tokenizer)
    engine.add(Request("a", [1, 2], SamplingParams(temperature=0)))
    engine.add(Request("aborted", [1, 2], SamplingParams(temperature=0)))
    engine.step()
    engine.abort("aborted")
    runner.fail_next = True

    with pytest.raises(RuntimeError, match="kernel launch failed"):
        engine.step()
    engine.check_integrity()
    completions = run_to_end(engine)

    assert completions["a"].text == "ine"
    assert completions["aborted"].finish_reason == "abort"


class SmallMachine(ScriptedRunner):
    """Has memory for so many tokens per pass; for none at all of a prompt that begins with `poison`."""

    def __init__(self, script: Seq[int], *, tokens_max: int, poison: int = -1) -> None:
        super().__init__(script)
        self.tokens_max, self.poison = tokens_max, poison
        self.num_failures = 0

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        is_poisoned = any(chunk.sequence.token_ids[0] == self.poison for chunk in chunks)
        if is_poisoned or sum(chunk.num_tokens for chunk in chunks) > self.tokens_max:
            self.num_failures += 1
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to ...")
        return super().forward(chunks, promised)


@pytest.mark.parametrize("tokens_max", [20, 40, 70])
def test_a_step_too_large_for_memory_is_planned_anew_in_smaller_ones(llama: Path, tokens_max: int) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = SmallMachine([*tokenizer.encode("fine"), EOS], tokens_max=tokens_max)
    engine = engine_over(runner, tokenizer, max_num_seqs=8)
    requests = [
        Request(str(number), [number] * 20, SamplingParams(temperature=0, max_tokens=9))
        for number in range(8)
    ]

    assert {done.text for done in complete(engine, *requests)} == {"fine"}
    assert 0 < runner.num_failures <= 4, "log2 of the tokens of the largest step, at most"
    assert engine.stats().out_of_memory == runner.num_failures


def test_limits_grow_back_slowly_after_memory_ran_out(llama: Path) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = SmallMachine(tokenizer.encode("a"), tokens_max=60)
    engine = engine_over(runner, tokenizer, max_num_batched_tokens=64)
    engine.add(Request("first", [3] * 63, greedy(50)))
    engine.add(Request("second", [4] * 63, greedy(50)))
    engine.step()
    assert engine.stats().max_num_batched_tokens == 32
    runner.tokens_max = 1000
    run_to_end(engine)

    assert engine.stats().max_num_batched_tokens == 32, "not yet"
    complete(engine, Request("third", [5], greedy(100)))
    assert engine.stats().max_num_batched_tokens == 64


def test_a_sequence_no_step_has_memory_for_ends_alone_and_names_the_reason(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = SmallMachine([*tokenizer.encode("fine"), EOS], tokens_max=1000, poison=13)
    engine = engine_over(runner, tokenizer, max_num_seqs=8)
    requests = [
        Request(f"r{number}", [10 + number] * 20, SamplingParams(temperature=0, max_tokens=9))
        for number in range(8)
    ]

    completions = complete(engine, *requests)

    lost = completions.pop(3)
    assert (lost.id, lost.finish_reason) == ("r3", "abort")
    assert lost.error is not None
    assert lost.error.startswith("out of memory: [enforce fail] DefaultCPUAllocator: can't allocate")
    assert {done.text for done in completions} == {"fine"}
    assert runner.num_failures <= 12, "halvings of tokens, then of sequences, and the last straw"
    assert "r3" in caplog.text


def test_a_sequence_whose_logits_are_not_numbers_ends_alone(tmp_path: Path) -> None:
    """One embedding row is NaN: whoever's prompt holds that token is lost; nobody else, not even later."""
    poisoned = 200
    clean = save_model(tmp_path / "clean")
    sick = save_model(tmp_path / "sick")
    weights = load_file(sick / "model.safetensors")
    weights["model.embed_tokens.weight"][poisoned] = float("nan")
    save_file(weights, sick / "model.safetensors", metadata={"format": "pt"})
    neighbour = Request("neighbour", [1, 2, 3], greedy(12))
    later = [Request(f"later-{n}", list(range(n, n + 17)), greedy(12)) for n in range(4)]
    engine = load_engine(sick, num_kv_blocks=25)

    doomed = Request("doomed", [*range(20), poisoned], greedy(12))
    lost, survivor = complete(engine, doomed, neighbour)
    engine_after = complete(engine, *later)

    assert (lost.finish_reason, lost.token_ids) == ("abort", [])
    assert lost.error == "the model's logits are not finite"
    healthy = load_engine(clean)
    assert survivor.token_ids == complete(healthy, neighbour)[0].token_ids
    assert [done.token_ids for done in engine_after] == [done.token_ids for done in complete(healthy, *later)]
    assert engine.stats().blocks_free == 25


class BrokenStream(TextStream):
    __slots__ = ()

    def push(self, token_id: int, *, look_for_stop: bool = True) -> str:
        raise OverflowError("no such token")


class SuperstitiousTokenizer(Tokenizer):
    def text_stream(self, prompt_token_ids: Seq[int], stop: Seq[str] = ()) -> TextStream:
        stream = super().text_stream(prompt_token_ids, stop)
        if prompt_token_ids == [13]:
            stream.__class__ = BrokenStream
        return stream


def test_a_sequence_whose_text_cannot_be_made_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = SuperstitiousTokenizer(byte_tokenizer())
    engine = engine_over(ScriptedRunner([*tokenizer.encode("ok"), EOS]), tokenizer)
    params = SamplingParams(temperature=0)

    unlucky, lucky = complete(engine, Request("unlucky", [13], params), Request("lucky", [14], params))

    assert (unlucky.finish_reason, unlucky.error) == ("abort", "OverflowError: no such token")
    assert (lucky.text, lucky.finish_reason) == ("ok", "stop")
    assert "unlucky" in caplog.text


# Loading


def test_the_engine_says_what_it_loaded(engine: Engine, llama: Path) -> None:
    assert engine.model_id == llama.name
    assert engine.context_length == CONTEXT
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_free, stats.blocks_total) == (0, 0, 256, 256)


def test_stats_count_what_happened(engine: Engine) -> None:
    complete(engine, Request("a", [1, 2, 3], greedy(4)), Request("b", [4, 5], greedy(2)))
    stats = engine.stats()

    assert stats.steps == 4
    assert stats.tokens_generated == 6
    assert stats.tokens_computed == 3 + 3 + 2 + 1  # a sampled token is computed only if another follows


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="cannot load"):
        load_engine(tmp_path)


def test_weights_that_are_not_safetensors_are_refused(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelLoadFailed, match="safetensors"):
        load_engine(directory)


def test_weights_that_are_not_all_there_are_refused_by_name(tmp_path: Path) -> None:
    """The rest would be random numbers, and the self-test compares a model only with itself."""
    directory = save_model(tmp_path / "model")
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelLoadFailed, match=r"1 weights are missing: model.layers.1.self_attn.q_proj"):
        load_engine(directory)


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][:, :-1].contiguous()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelLoadFailed, match=r"shape: lm_head.weight \(\[258, 31\], not \[258, 32\]\)"):
        load_engine(directory)


@pytest.mark.parametrize("content", [b"", b"not weights", b"\x08\x00\x00\x00\x00\x00\x00\x00{}"])
def test_damaged_weights_are_refused(tmp_path: Path, content: bytes) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "model.safetensors").write_bytes(content)

    with pytest.raises(ModelLoadFailed, match="cannot load"):
        load_engine(directory)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "[]"),
        ("config.json", '{"model_type": "llama", "num_attention_heads": "many"}'),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer.json", "{}"),
    ],
)
def test_files_that_say_nonsense_are_refused(tmp_path: Path, file: str, content: str) -> None:
    directory = save_model(tmp_path / "model")
    (directory / file).write_text(content)

    with pytest.raises(ModelLoadFailed, match="cannot load"):
        load_engine(directory)


def test_an_error_that_says_little_is_named(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model", hidden_act="silu")
    text = (directory / "config.json").read_text()
    (directory / "config.json").write_text(text.replace('"silu"', '"relic"'))

    with pytest.raises(ModelLoadFailed, match="KeyError: 'relic'"):
        load_engine(directory)


def test_an_end_of_sequence_the_model_cannot_say_does_not_end_the_engine(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "generation_config.json").write_text('{"eos_token_id": [256, 99999, -1]}')
    params = greedy(3, min_tokens=3, ignore_eos=False)

    [completion] = complete(load_engine(directory), Request("held open", [1, 2], params))

    assert len(completion.token_ids) == 3


def test_a_context_longer_than_the_models_is_refused(llama: Path) -> None:
    with pytest.raises(InvalidConfig, match="max_model_len 129 exceeds the model's context of 128 tokens"):
        load_engine(llama, max_model_len=129)
    assert load_engine(llama, max_model_len=64).context_length == 64


def test_kv_memory_can_be_sized_in_bytes_or_left_to_the_engine(llama: Path) -> None:
    block_bytes = 2 * 4 * 2 * (8 + 8) * 4  # layers, tokens, KV heads, key and value dims, float32

    assert (
        load_engine(llama, num_kv_blocks=None, kv_cache_bytes=10 * block_bytes + 1).stats().blocks_total == 10
    )
    assert load_engine(llama, num_kv_blocks=None, max_num_seqs=3).stats().blocks_total == 3 * CONTEXT // 4
    with pytest.raises(InvalidConfig, match="does not hold one block"):
        load_engine(llama, num_kv_blocks=None, kv_cache_bytes=block_bytes - 1)


@pytest.mark.parametrize("size", [{"num_kv_blocks": 2**40}, {"num_kv_blocks": None, "kv_cache_bytes": 2**70}])
def test_more_kv_memory_than_there_is_is_refused(llama: Path, size: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"no memory for \d+ KV blocks"):
        load_engine(llama, **size)


def test_kv_memory_leaves_room_for_the_largest_step(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little memory free, its share for KV would be more than activations and logits leave."""
    config = {"num_kv_blocks": None, "max_num_seqs": 64, "max_num_batched_tokens": 512}
    activations, logits = 512 * (6 * 32 + 3 * 48) * 4, 4 * 64 * VOCAB_SIZE * 4
    block_bytes = 2 * 4 * 2 * (8 + 8) * 4
    free = activations + logits + 10 * block_bytes
    monkeypatch.setattr("workers.engine.execution.kv_memory._available_cpu_bytes", lambda: free)

    assert load_engine(llama, **config).stats().blocks_total == 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("interactive_step_budget_ms", 0),
        ("dtype", "int3"),
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("num_kv_blocks", 0),
        ("model", ""),
        ("block_size", 1.5),
        ("block_size", "8"),
        ("max_num_seqs", float("inf")),
        ("max_num_batched_tokens", True),
        ("kv_cache_bytes", 1e9),
        ("max_model_len", "128"),
        ("interactive_step_budget_ms", float("nan")),
        ("interactive_step_budget_ms", "50"),
        ("deterministic", "no"),
        ("overlap_steps", 1),
    ],
)
def test_a_senseless_configuration_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=field):
        EngineConfig(**({"model": "m"} | {field: value}))


def test_importing_the_boundary_costs_no_torch() -> None:
    code = "import sys, workers.engine, workers.engine.batching.batcher; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
