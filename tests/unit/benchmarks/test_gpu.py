"""The GPU benchmark on a CPU: it runs to its end, says what it is, and needs nothing it may not need."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.device import processes, vllm_peer
from benchmarks.device.admission import seconds_by_cost
from benchmarks.device.limits import Limits
from benchmarks.device.parts import Figure, mixed_requests
from benchmarks.device.processes import Machine, PartFailed
from benchmarks.device.speed import WAYS_TO_SAMPLE, nano_vllm_requests
from benchmarks.fixtures.models import QWENS, SHAPES, make_model

ROOT = Path(__file__).parents[3]
ALLOWED = {
    "torch",
    "triton",
    "transformers",
    "numpy",
    "safetensors",
    "tokenizers",
    "nightshift_engine",
    "benchmarks",
}
ALLOWED |= {"jinja2", "huggingface_hub"}  # torch and transformers depend on them
LIST_MODULES = """
import runpy, sys
modules_path, *sys.argv = sys.argv[1:]
sys.path[0] = "benchmarks"
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    import nightshift_engine.engine
    roots = ("nightshift_engine", "benchmarks")
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] in roots]
    with open(modules_path, "w") as file:
        print(*(module.__file__ for module in ours if module.__file__), file=file)
"""
"""Runs a script as `python SCRIPT` does, then writes down which of our files are loaded."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As on a machine where nothing of ours is installed: from the root of the tree, by path."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)


@dataclass(frozen=True)
class Measured:
    """A short run on the CPU, and the files of ours that it and the engine load."""

    done: subprocess.CompletedProcess[str]
    report_path: Path
    files: list[Path]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("gpu")
    modules, out = folder / "modules", folder / "gpu.json"
    arguments = ("--device", "cpu", "--quick", "--out", str(out))
    done = run("-c", LIST_MODULES, str(modules), "benchmarks/gpu.py", *arguments)
    return Measured(done, out, [Path(name) for name in modules.read_text().split()])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as a script, it writes to the first
    return importlib.import_module("benchmarks.gpu")


@pytest.mark.exhaustive
def test_it_checks_and_measures_from_start_to_end(measured: Measured) -> None:
    assert measured.done.returncode == 0, measured.done.stderr
    assert "nothing about any GPU" in measured.done.stdout
    report = json.loads(measured.report_path.read_text())
    assert report["machine"]["is_gpu"] is False
    assert report["checks"]
    assert all(check["holds"] for check in report["checks"])
    figures = [Figure(**figure) for figure in report["figures"]]
    counts = Counter(figure.part for figure in figures)
    assert counts == {
        "start": 1, "decode": 2, "prompts": 2, "mixed step": 2, "requests": 2, "even": 1, "nano": 1,
        "sampling": len(WAYS_TO_SAMPLE), "shared": 2, "transformers": 2,
    }  # fmt: skip
    assert all(figure.value > 0 or figure.part == "sampling" for figure in figures)
    assert all(figure.share != 0 for figure in figures)
    assert report["failed"] == {}
    assert all(f"| {figure.part} | {figure.case} |" in measured.done.stdout for figure in figures)


def test_a_part_that_fails_ends_alone_and_none_begins_after_the_time(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Iterator[Figure]:
        yield Figure("tiny", "nano", "a", 1.0, "s")
        raise RuntimeError("no such kernel")

    run = gpu.Run(SimpleNamespace(device="cpu", within=60.0))
    run.try_part("nano", fail)
    run.try_part("even", lambda: [Figure("tiny", "even", "b", 2.0, "s")])
    late = gpu.Run(SimpleNamespace(device="cpu", within=0.0))
    late.try_part("even", lambda: pytest.fail("it began"))

    assert [figure.case for figure in run.figures] == ["a", "b"]
    assert run.failed == {"nano": "RuntimeError: no such kernel"}
    assert late.failed == {"even": "not begun within 0 s"}
    assert "no such kernel" in capsys.readouterr().err


def test_the_parts_of_a_process_tell_a_load_from_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "seconds": {"import torch": 2.0, "weights to the device": 4.0},
        "weight_bytes": 16e9,
        "kernels": {"compiled": 3},
        "kernel_seconds": {"compiled": 1.5},
    }
    monkeypatch.setattr(Machine, "run", lambda _, *arguments: "noise\n" + json.dumps(said))

    figures = {figure.case: figure.value for figure in processes.load(Machine("cpu", True, float), "tiny")}

    assert (figures["second, all"], figures["first, import torch"]) == (6.0, 2.0)
    assert (figures["first, speed to the device"], figures["first, kernels compiled, time"]) == (4.0, 1.5)


def test_a_process_that_fails_or_does_not_end_in_time_is_an_error() -> None:
    with pytest.raises(PartFailed, match="so it is"):
        Machine("cpu", True, lambda: 60.0).run("-c", "raise SystemExit('so it is')")
    with pytest.raises(PartFailed, match="did not end in 1 s"):
        Machine("cpu", True, lambda: 0.0).run("-c", "import signal; signal.pause()")


def test_mixed_requests_are_the_same_each_time_and_have_lengths_over_the_range() -> None:
    requests = mixed_requests(QWENS["0.6b"], 1024, 512)

    num_in = [len(request.prompt_token_ids) for request in requests]
    num_out = [request.sampling.max_tokens or 0 for request in requests]
    assert (min(num_in), max(num_in), min(num_out), max(num_out)) == (32, 512, 64, 512)
    assert num_out == [r.sampling.max_tokens for r in mixed_requests(QWENS["0.6b"], 1024, 512)]


def test_the_requests_are_those_that_nano_vllm_publishes_a_figure_for() -> None:
    """Its table says 133,966 output tokens."""
    requests = nano_vllm_requests()

    assert sum(request.sampling.max_tokens or 0 for request in requests) == 133_966
    assert {100 <= len(request.prompt_token_ids) <= 1024 for request in requests} == {True}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_it_says_so_and_measures_nothing(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main([]) == 2
    said = capsys.readouterr()
    assert "no CUDA device" in said.err
    assert said.out == ""


@pytest.mark.exhaustive
def test_it_and_the_engine_import_only_what_a_gpu_machine_has(measured: Measured) -> None:
    assert any(file.name == "engine.py" for file in measured.files), measured.done.stderr

    foreign = {
        (file.name, name)
        for file in measured.files
        for name in imported_names(file)
        if name not in ALLOWED and name not in sys.stdlib_module_names
    }
    assert not foreign


def imported_names(file: Path) -> set[str]:
    """Top-level names of everything a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "qwen3-moe"])
def test_other_families_have_the_parameters_that_their_models_have(name: str) -> None:
    shape = replace(SHAPES[name], vocab_size=512, num_layers=2)
    model = make_model(shape, torch.float32, torch.device("meta"), context_length=64)
    not_linear = ("embed", "wpe", "wte", "lm_head", "mlp.gate.")
    counted = sum(
        p.numel()
        for name, p in model.named_parameters()
        if p.dim() >= 2 and not any(part in name for part in not_linear)
    )

    assert shape.num_parameters_read(10**6) - shape.num_head_parameters == pytest.approx(counted)
    assert shape.num_parameters_read(1) == pytest.approx(shape.num_linear_parameters)


def test_the_shapes_have_the_parameters_that_the_models_have() -> None:
    shape = QWENS["tiny"]
    model = make_model(shape, torch.float32, torch.device("cpu"), context_length=64)
    counted = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)

    assert shape.num_linear_parameters == counted
    assert round(QWENS["0.6b"].num_linear_parameters / 1e9, 2) == 0.6
    assert round(QWENS["8b"].num_linear_parameters / 1e9, 1) == 7.6
    assert QWENS["0.6b"].kv_elements_per_token * 2 == 114_688


def test_a_step_is_bound_by_memory_at_first_and_by_arithmetic_later() -> None:
    limits, shape = Limits(bytes_per_second=4e12, flops_per_second=8e14), QWENS["0.6b"]
    weights = shape.num_linear_parameters * 2

    assert limits.decode_seconds(shape, 2, 1, 0) == pytest.approx(weights / 4e12, rel=1e-3)
    assert limits.decode_seconds(shape, 2, 1, 1000) > limits.decode_seconds(shape, 2, 1, 0)
    many = 100_000
    assert limits.decode_seconds(shape, 2, many, 0) == pytest.approx(weights * many / 8e14)
    assert limits.prefill_seconds(shape, 2, 1, 1) == pytest.approx(weights / 4e12)
    short, long = (limits.prefill_seconds(shape, 2, 1, length) for length in (4096, 8192))
    assert long > 2 * short  # attention grows with the square


class FakeLLM:
    """Answers each prompt with as many tokens as were asked for."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []

    def generate(self, prompts: Sequence[Any], params: Sequence[Any], **_: Any) -> list[Any]:
        self.runs.append((len(prompts), sum(one.max_tokens for one in params)))
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * one.max_tokens)]) for one in params]


def test_vllm_is_given_the_requests_that_our_engine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = SimpleNamespace(SamplingParams=lambda **fields: SimpleNamespace(**fields))
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    llm, shape = FakeLLM(), QWENS["tiny"]

    measured = vllm_peer.measure(llm, shape)

    ours = sum(request.sampling.max_tokens or 0 for request in mixed_requests(shape, 1024, 512))
    assert llm.runs.count((1024, ours)) == 2
    assert {(256, 256 * 128), (256, 256), (1, 272), (1, 16), (32, 32 * 144)} < set(llm.runs)
    assert len(measured) == 8


def test_rows_admitted_in_groups_gain_what_steps_with_prompts_cost() -> None:
    rows = [(20, 8 + 7 * number % 60) for number in range(800)]

    (num_alone, alone), (num_grouped, grouped) = (
        seconds_by_cost(rows, in_groups=in_groups) for in_groups in (False, True)
    )

    assert num_grouped < num_alone
    assert alone[12.0] - alone[3.0] == pytest.approx(num_alone * 0.009)
    assert alone[12.0] > grouped[12.0]
