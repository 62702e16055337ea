"""The engine at its boundary: what comes out of requests, which are refused, and who goes first."""

import threading
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import Completion, Engine, InvalidRequest, Request, SamplingParams
from nightshift_engine.errors import DuplicateRequest, PromptTooLong
from tests.unit.engine.running.scripted_runner import scripted
from tests.unit.engine.tiny.decoders import (
    CONTEXT,
    EOS,
    VOCAB_SIZE,
    collect,
    complete,
    greedy,
    make_cramped_engine,
    make_engine,
    random_prompts,
    run_to_end,
)

EOS_NEXT = {EOS: 100.0}


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


@pytest.mark.parametrize(
    ("script", "params", "text", "reason"),
    [
        ("one two three four", {"stop": ("two",)}, "one ", "stop"),
        ("one two three four", {"stop": ("e t",)}, "on", "stop"),
        ("one two three four", {"stop": ("three four",)}, "one two ", "stop"),
        ("one two three four", {"stop": ("never",), "ignore_eos": False}, "one two three four", "stop"),
        ("one;two", {"stop_token_ids": (ord(";") - 33,)}, "one", "stop"),
        ("maybe stop", {"stop": ("stopping",), "max_tokens": 8}, "maybe st", "length"),
        ("aXbXc", {"stop": ("X",), "min_tokens": 3}, "aXb", "stop"),
        ("ab", {"max_tokens": 7}, "ababa", "length"),
    ],
)
def test_a_text_ends_before_what_stops_it(
    llama: Path, script: str, params: dict[str, Any], text: str, reason: str
) -> None:
    engine = scripted(llama, script)
    assert engine.tokenizer.encode(";") == [ord(";") - 33]

    [done] = complete(engine, Request("a", [1], greedy(**({"max_tokens": 30} | params))))

    assert (done.text, done.finish_reason) == (text, reason)


def test_min_tokens_puts_off_the_end_of_sequence(engine: Engine) -> None:
    params = greedy(20, ignore_eos=False, min_tokens=3, logit_bias=EOS_NEXT)
    done = complete(engine, Request("a", [1, 2], params))[0]

    assert len(done.token_ids) == 4
    assert done.token_ids[-1] == EOS


@pytest.mark.parametrize(
    ("settings", "longest", "limit"), [({}, CONTEXT, "context"), ({"num_kv_blocks": 5}, 20, "KV memory")]
)
def test_prompt_and_answer_are_no_longer_than_context_and_memory(
    llama: Path, settings: dict[str, int], longest: int, limit: str
) -> None:
    engine = make_engine(llama, **settings)
    for num_left in (5, 1):
        [done] = complete(engine, Request("a", [1] * (longest - num_left), greedy(1000)))
        assert (len(done.token_ids), done.finish_reason) == (num_left, "length")
    refusal = f"{longest} tokens and one new token exceed the {limit} of {longest} tokens"
    with pytest.raises(PromptTooLong, match=refusal):
        engine.add(Request("a", [1] * longest, greedy(1)))


def test_a_shared_beginning_is_reused_and_changes_nothing(engine: Engine, llama: Path) -> None:
    beginning = list(range(40, 60))
    first, second = Request("a", [*beginning, 1, 2], greedy(8)), Request("b", [*beginning, 3], greedy(8))
    fresh = make_engine(llama, enable_prefix_reuse=False)

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
        for n, prompt in enumerate(random_prompts(5))
    ]
    roomy = make_engine(llama)
    cramped = make_cramped_engine(llama, num_kv_blocks=12, max_num_batched_tokens=6)

    alone = [complete(roomy, request)[0].token_ids for request in requests]

    assert [done.token_ids for done in complete(cramped, *requests)] == alone
    assert cramped.stats().preemptions > 0


def test_an_interactive_request_overtakes_bulk_that_fills_the_engine(llama: Path) -> None:
    engine = make_engine(llama, max_num_seqs=2)
    for n, prompt in enumerate(random_prompts(4)):
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
        (Request("a", [1], SamplingParams(allowed_token_ids=(3, 900))), "allowed_token_ids has token id 900"),
        (
            Request("a", [1], SamplingParams(allowed_token_ids=(EOS,), min_tokens=2)),
            "only tokens that end the output; min_tokens of 2 asks for more",
        ),
        (
            Request("a", [1], SamplingParams(logprobs=1, logprob_token_ids=(900,))),
            "logprob_token_ids has token id 900",
        ),
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


# Many threads, and the books


def test_requests_come_and_go_from_many_threads_while_the_engine_steps(llama: Path) -> None:
    engine = make_engine(llama, num_kv_blocks=40, max_num_seqs=6)
    all_have_added = threading.Barrier(5)

    def send(name: str) -> None:
        for n in range(6):
            engine.add(Request(f"{name}-{n}", [n + 1, n + 2], greedy(6)))
        engine.abort(f"{name}-5")
        all_have_added.wait(timeout=30)

    threads = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    completions: dict[str, Completion] = {}
    while all_have_added.n_waiting < 4 or engine.has_work:
        collect(completions, engine.step())
    all_have_added.wait(timeout=30)
    for thread in threads:
        thread.join()
    completions |= run_to_end(engine)

    assert len(completions) == 24
    assert all(done.is_finished for done in completions.values())
    assert all(len(done.token_ids) == 6 for done in completions.values() if done.finish_reason == "length")
    engine.check_integrity()


def test_stats_count_what_happened(engine: Engine) -> None:
    complete(engine, Request("a", [1, 2, 3], greedy(4)), Request("b", [4, 5], greedy(2)))
    stats = engine.stats()

    assert stats.steps == 4
    assert stats.tokens_generated == 6
    assert stats.tokens_computed == 3 + 3 + 2 + 1  # a sampled token is computed only if another follows


def test_an_abort_takes_effect_at_the_next_step_and_is_reported_once(engine: Engine) -> None:
    engine.abort("never seen")
    for id in ("running", "other"):
        engine.add(Request(id, [1, 2, 3], greedy(10)))
    engine.step()
    engine.add(Request("not begun", [1, 2, 3], greedy(10)))
    for id in ("running", "running", "not begun"):
        engine.abort(id)

    outputs = {output.id: output for output in engine.step()}

    for id in ("running", "not begun"):
        assert (outputs[id].finish_reason, outputs[id].token_ids, outputs[id].error) == ("abort", [], None)
    assert outputs["other"].finish_reason is None
    assert [output.id for output in engine.step()] == ["other"]
    assert engine.stats().tokens_computed == 3 + 3 + 2, "and nothing of what had not begun"
    run_to_end(engine)
    engine.abort("other")
    assert engine.step() == []
