"""Requests that leave before their end: aborted, or drained and resumed elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.workers.engine.scripted_runner import scripted
from tests.unit.workers.engine.tiny_models import (
    EOS,
    collect,
    complete,
    greedy,
    load_engine,
    random_prompts,
    run_to_end,
)
from workers.engine import Completion, Engine, EngineDraining, Request, SamplingParams

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
    for n, prompt in enumerate(random_prompts(3)):
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
    requests = [Request(str(n), prompt, params) for n, prompt in enumerate(random_prompts(4))]
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
