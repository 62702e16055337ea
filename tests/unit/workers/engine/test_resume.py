"""A request that stopped in the middle goes on elsewhere, as if nothing had happened, or is refused."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workers.engine.tiny_models import (
    collect,
    complete,
    greedy,
    load_engine,
    run_to_end,
    save_model,
)
from workers.engine import (
    Completion,
    Engine,
    IncompatibleState,
    InvalidRequest,
    InvalidState,
    MadeBy,
    Request,
    ResumeState,
    SamplingParams,
    TokenLogprobs,
    UnknownRequest,
)

HERE = MadeBy(
    "demo",
    "d1",
    "float32",
    "auto",
    "cpu",
    "x86_64 AVX512",
    "2.13.0",
    "native",
    "float32",
    deterministic=False,
)


def seeded(**overrides: Any) -> SamplingParams:
    return SamplingParams(**({"seed": 5, "max_tokens": 20, "ignore_eos": True, "top_p": 0.9} | overrides))


def requests() -> list[Request]:
    return [
        Request("greedy", [1, 2, 3, 4, 5], greedy(20)),
        Request("seeded", [9, 8, 7], seeded(stop=("zz",), frequency_penalty=0.3)),
        Request("unseeded", [9, 8, 7], seeded(seed=None, logit_bias={5: 1.5})),
        Request("curious", [4, 4], seeded(logprobs=2)),
    ]


def through_json(state: ResumeState) -> ResumeState:
    return ResumeState.from_json(json.loads(json.dumps(state.to_json())))


def exported_after(directory: Path, steps: int) -> list[ResumeState]:
    engine = load_engine(directory)
    for request in requests():
        engine.add(request)
    for _ in range(steps):
        engine.step()
    return [engine.export(request.id) for request in requests()]


@pytest.mark.parametrize("steps", [0, 1, 6, 19])
def test_an_exported_request_continues_elsewhere_as_if_nothing_had_happened(llama: Path, steps: int) -> None:
    expected = complete(load_engine(llama), *requests())
    there = load_engine(llama, block_size=8)

    for state in exported_after(llama, steps):
        assert there.resume(through_json(state))
    finished = run_to_end(there)

    for wanted in expected:
        got = finished[wanted.id]
        assert (got.token_ids, got.text, got.finish_reason) == (
            wanted.token_ids,
            wanted.text,
            wanted.finish_reason,
        )
        assert [each.top_ids for each in got.logprobs] == [each.top_ids for each in wanted.logprobs]
        assert [each.logprob for each in got.logprobs] == pytest.approx([e.logprob for e in wanted.logprobs])


def test_exporting_disturbs_nothing_and_counts_the_characters_given_out(llama: Path) -> None:
    engine, completions = load_engine(llama), dict[str, Completion]()
    for request in requests():
        engine.add(request)
    while engine.has_work:
        collect(completions, engine.step())
        for id, completion in completions.items():
            if not completion.is_finished:
                state = engine.export(id)
                assert state.num_characters == len(completion.text)
                assert list(state.request.output_token_ids) == completion.token_ids
                assert list(state.request.output_logprobs) == completion.logprobs

    undisturbed = complete(load_engine(llama), *requests())
    assert [completions[done.id].token_ids for done in undisturbed] == [
        done.token_ids for done in undisturbed
    ]


def test_a_request_goes_on_under_another_id_with_the_seed_it_had(llama: Path) -> None:
    (wanted,) = complete(load_engine(llama), Request("a", [1, 2], seeded(seed=None)))
    engine = load_engine(llama)
    engine.add(Request("a", [1, 2], seeded(seed=None)))
    for _ in range(5):
        engine.step()
    state = engine.export("a")

    there = load_engine(llama)
    there.resume(replace(state, request=replace(state.request, id="b")))

    assert run_to_end(there)["b"].token_ids == wanted.token_ids


def test_only_what_is_in_the_engine_can_be_exported(llama: Path) -> None:
    engine = load_engine(llama)
    complete(engine, Request("done", [1], greedy(2)))

    for id in ("done", "never seen"):
        with pytest.raises(UnknownRequest, match=id):
            engine.export(id)


def test_another_models_tokens_are_refused_by_name(llama: Path, tmp_path: Path) -> None:
    """Same architecture, same file names, same sizes: other weights."""
    state = exported_after(llama, 3)[0]
    other = load_engine(save_model(tmp_path / llama.name, seed=99))

    with pytest.raises(IncompatibleState, match="made with model") as refused:
        other.resume(state)

    assert refused.value.field == "model"
    assert not other.has_work


def test_a_copy_of_the_model_under_another_name_is_the_same_model(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(llama)

    assert load_engine(tmp_path / "alias").resume(exported_after(llama, 3)[0])


@pytest.mark.parametrize(
    "difference",
    [
        {"dtype": "bfloat16"},
        {"isa": "aarch64 NEON"},
        {"torch_version": "2.14"},
        {"device": "cuda"},
        {"attention_backend": "torch"},
        {"weight_dtype": "int8"},
    ],
)
def test_another_machine_continues_inexactly_unless_exactness_was_promised(
    difference: dict[str, str],
) -> None:
    (field,) = difference
    there = replace(HERE, **difference)
    assert HERE.accepts(HERE)
    assert not HERE.accepts(there)

    promised = replace(HERE, deterministic=True)
    assert promised.accepts(promised)
    with pytest.raises(IncompatibleState) as refused:
        promised.accepts(replace(there, deterministic=True))
    assert refused.value.field == field


def test_a_deterministic_engine_takes_no_tokens_that_were_not_made_deterministically() -> None:
    for ours, theirs in [(True, False), (False, True)]:
        with pytest.raises(IncompatibleState, match="deterministic"):
            replace(HERE, deterministic=ours).accepts(replace(HERE, deterministic=theirs))


def a_state() -> ResumeState:
    logprobs = (TokenLogprobs(-0.5, (1, 2), (-0.5, float("-inf"))), TokenLogprobs(float("-inf")))
    request = Request(
        "r", (1, 2), seeded(logprobs=2, logit_bias={3: -100}), "background", (7, 8), "job-1", logprobs
    )
    return ResumeState(request, 3, HERE)


def test_a_state_survives_json_unchanged() -> None:
    assert through_json(a_state()) == a_state()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"version": 2}, "version"),
        ({"id": 7}, "id"),
        ({"priority": "urgent"}, "priority"),
        ({"group": 7}, "group"),
        ({"output_token_ids": [1.5]}, "output_token_ids"),
        ({"prompt_token_ids": None}, "prompt_token_ids"),
        ({"output_logprobs": [[1]]}, "output_logprobs"),
        ({"output_logprobs": None}, "output_logprobs"),
        ({"output_logprobs": [[10**400, [], []]]}, "output_logprobs"),
        ({"output_logprobs": [[float("nan"), [], []]]}, "output_logprobs"),
        ({"output_logprobs": [[-1.0, [float("inf")], [-1.0]]]}, "output_logprobs"),
        ({"sampling": {"temperature": 10**400, "logit_bias": []}}, "sampling"),
        ({"sampling": {"temperature": -1, "logit_bias": []}}, "sampling"),
        ({"sampling": {"heat": 1, "logit_bias": []}}, "sampling"),
        ({"sampling": {}}, "sampling"),
        ({"num_characters": "3"}, "num_characters"),
        ({"num_characters": -1}, "num_characters"),
        ({"made_by": {}}, "made_by.model_id"),
        ({"made_by": asdict(HERE) | {"deterministic": 1}}, "made_by.deterministic"),
    ],
)
def test_what_is_no_state_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidState) as refused:
        ResumeState.from_json(a_state().to_json() | changes)
    assert refused.value.field == field


def test_tokens_without_the_logprobs_that_were_asked_for_are_refused(llama: Path) -> None:
    with pytest.raises(InvalidRequest, match="output_logprobs has 0 entries for 2 output tokens"):
        load_engine(llama).add(Request("a", [1], seeded(logprobs=0), output_token_ids=[1, 2]))


# Across processes


def run_and_tell(directory: str) -> None:
    """In a process of its own: run the requests, and after every step print each one's state."""
    engine = load_engine(Path(directory))
    for request in requests():
        engine.add(request)
    unfinished = {request.id for request in requests()}
    while engine.has_work:
        unfinished -= {output.id for output in engine.step() if output.finish_reason is not None}
        print(json.dumps([engine.export(id).to_json() for id in sorted(unfinished)]), flush=True)


def resume_and_tell(directory: str) -> None:
    """In a process of its own: continue the states that come on standard input."""
    engine: Engine = load_engine(Path(directory))
    for state in json.loads(sys.stdin.read()):
        engine.resume(ResumeState.from_json(state))
    print(json.dumps({id: [done.text, done.token_ids] for id, done in run_to_end(engine).items()}))


def child(function: str, directory: Path, **streams: Any) -> subprocess.Popen[str]:
    code = f"from {__name__} import {function}; {function}({str(directory)!r})"
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, **streams)


def test_what_a_killed_process_had_begun_another_one_finishes(llama: Path) -> None:
    expected = complete(load_engine(llama), *requests())
    seed = random.randrange(2**32)
    print(f"{seed=}")
    steps = random.Random(seed).randint(1, 18)

    first = child("run_and_tell", llama)
    assert first.stdout is not None
    states = [first.stdout.readline() for _ in range(steps)][-1]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    said, _ = child("resume_and_tell", llama, stdin=subprocess.PIPE).communicate(states)

    assert json.loads(said) == {done.id: [done.text, done.token_ids] for done in expected}
