"""An interrupted request continues in another engine as if it had never stopped, or is refused."""

import json
import random
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import Completion, Engine, InvalidRequest, MadeBy, Request, SamplingParams
from nightshift_engine.errors import IncompatibleState, InvalidState
from tests.unit.engine.running.carrying import continued, resumed, save
from tests.unit.engine.running.scripted_runner import scripted
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    EOS,
    collect,
    complete,
    greedy,
    make_engine,
    random_prompts,
    run_to_end,
    save_model,
)
from workers.serving.carry_over import decode_carry_overs

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


def run_steps(engine: Engine, wanted: list[Request], steps: int) -> dict[str, Completion]:
    completions: dict[str, Completion] = {}
    for request in wanted:
        engine.add(request)
    for _ in range(steps):
        collect(completions, engine.step())
    return completions


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({}, {"block_size": 8}),
        ({"max_num_batched_tokens": 20}, {}),
        ({"overlap_steps": True}, {"overlap_steps": True}),  # a token in flight is sampled again
    ],
    ids=["blocks of another size", "prompts in parts", "overlapping steps"],
)
@pytest.mark.parametrize("steps", mostly_exhaustive(range(20), default=[0, 1, 2, 6, 19]))
def test_unfinished_requests_continue_elsewhere_as_if_nothing_had_happened(
    llama: Path, here: dict[str, Any], there: dict[str, Any], steps: int
) -> None:
    penalised = SamplingParams(max_tokens=18, ignore_eos=True, repetition_penalty=1.3)
    random = [Request(str(n), prompt, penalised) for n, prompt in enumerate(random_prompts(4))]
    wanted = [*requests(), *random]
    expected = complete(make_engine(llama), *wanted)
    lost, other = make_engine(llama, **here), make_engine(llama, **there)
    so_far = run_steps(lost, wanted, steps)

    for request in resumed(other, wanted, save(lost, wanted, so_far)):
        so_far.pop(request.id, None)  # its first output repeats them
        other.add(request)
    finished = so_far | run_to_end(other)

    for done in expected:
        got = finished[done.id]
        assert (got.token_ids, got.text, got.finish_reason) == (done.token_ids, done.text, done.finish_reason)
        assert [token.top_ids for token in got.logprobs] == [token.top_ids for token in done.logprobs]
        assert [token.logprob for token in got.logprobs] == pytest.approx([e.logprob for e in done.logprobs])


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_resumed_request_gives_its_whole_text_once(llama: Path, cut: int) -> None:
    """Cuts anywhere, in the middle of an emoji or of a stop string too."""
    params = greedy(30, stop=("END.",), ignore_eos=False)
    script = "a🌙EN b END. c"
    whole = complete(scripted(llama, script), Request("a", [1], params))[0]
    again = complete(
        scripted(llama, script), Request("a", [1], params, output_token_ids=whole.token_ids[:cut])
    )[0]

    assert whole.text == "a🌙EN b "
    assert (again.text, again.token_ids) == (whole.text, whole.token_ids)


def test_a_resumed_request_that_was_already_done_ends_without_computing(llama: Path) -> None:
    done = complete(scripted(llama, "hello END"), Request("a", [1], greedy(30, stop=("END",))))[0]
    engine = scripted(llama, "hello END")
    for params, tokens, wanted in (
        (greedy(30, stop=("END",)), done.token_ids, ("hello ", "stop")),
        (SamplingParams(), [*done.token_ids, EOS], ("hello END", "stop")),
        (greedy(3), done.token_ids, ("hel", "length")),
    ):
        [ended] = complete(engine, Request("a", [1], params, output_token_ids=tokens))
        assert (ended.text, ended.finish_reason) == wanted
    assert engine.stats().tokens_computed == 0


def test_tokens_without_the_logprobs_that_were_asked_for_are_refused(llama: Path) -> None:
    with pytest.raises(InvalidRequest, match="output_logprobs has 0 entries for 2 output tokens"):
        make_engine(llama).add(Request("a", [1], seeded(logprobs=0), output_token_ids=[1, 2]))


# What made the tokens


def test_another_models_tokens_are_refused_by_name(llama: Path, tmp_path: Path) -> None:
    """Same architecture, same file names, same sizes: other weights."""
    made = make_engine(llama)
    carry_over = decode_carry_overs(save(made, requests(), run_steps(made, requests(), 3)))[0]
    other = make_engine(save_model(tmp_path / llama.name, seed=99))

    with pytest.raises(IncompatibleState, match="made with model") as refused:
        continued(other, requests()[0], carry_over)

    assert refused.value.field == "model"


def test_a_copy_of_the_model_under_another_name_is_the_same_model(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(llama)
    here, there = make_engine(llama), make_engine(tmp_path / "alias")

    assert there.made_by.accepts(here.made_by)
    assert there.made_by.model_id != here.made_by.model_id


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


def test_what_made_the_tokens_survives_json() -> None:
    assert MadeBy.from_json(json.loads(json.dumps(asdict(HERE)))) == HERE


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ([], "made_by"),
        ({}, "made_by.model_id"),
        (asdict(HERE) | {"isa": None}, "made_by.isa"),
        (asdict(HERE) | {"deterministic": 1}, "made_by.deterministic"),
    ],
)
def test_a_record_with_a_missing_or_wrong_field_is_refused_by_field(data: Any, field: str) -> None:
    with pytest.raises(InvalidState) as refused:
        MadeBy.from_json(data)
    assert refused.value.field == field


# Across processes


def run_and_save(directory: str) -> None:
    """Runs the requests in a process of its own, and prints the carry-over of all after every step."""
    engine, completions = make_engine(Path(directory)), dict[str, Completion]()
    for request in requests():
        engine.add(request)
    while engine.has_work:
        collect(completions, engine.step())
        print(json.dumps(save(engine, requests(), completions).decode()), flush=True)


def test_what_a_killed_process_had_begun_another_one_finishes(llama: Path) -> None:
    """It is begun in a process of its own, and finished in this one."""
    expected = complete(make_engine(llama), *requests())
    seed = random.randrange(2**32)
    print(f"{seed=}")
    steps = random.Random(seed).randint(1, 18)

    code = f"from {__name__} import run_and_save; run_and_save({str(llama)!r})"
    first = subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE)
    assert first.stdout is not None
    saved = [first.stdout.readline() for _ in range(steps)][-1]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    engine = make_engine(llama)
    finished = complete(engine, *resumed(engine, requests(), json.loads(saved).encode()))

    assert [(done.id, done.text, done.token_ids) for done in finished] == [
        (done.id, done.text, done.token_ids) for done in expected
    ]
