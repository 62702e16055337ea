"""The benchmark from its command line: what is run in which order, and what answers a wrong argument."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks import launch, run
from benchmarks.launch import RunFailedError, run_process
from benchmarks.peers import OURS
from benchmarks.runners.harness import RunResult, length_problem
from benchmarks.runners.nightshift import engine_settings, parser
from benchmarks.workloads import BenchRequest, make_workload
from tests.unit.workers.engine.tiny_models import save_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(
        tmp_path_factory.mktemp("bench") / "model", vocab_size=512, max_position_embeddings=1024
    )


def our_runner(checkpoint: Path, result: Path, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "benchmarks.runners.nightshift", "--engine", OURS, "--model", str(checkpoint),
        "--workload", "tiny", "--requests", "3", "--threads", "1", "--precision", "float32",
        "--kv-cache-gib", "0.05", "--result", str(result), *options,
    ]  # fmt: skip


OPTIONS = ["--kv-dtype", "int8", "--weights", "int8", "--set", "block_size=16"]
SETTINGS = {"kv_cache_dtype": "int8", "weight_dtype": "int8", "block_size": 16}


def test_our_runner_runs_a_workload_to_its_end_and_writes_down_what_it_took(
    checkpoint: Path, tmp_path: Path
) -> None:
    command = our_runner(checkpoint, tmp_path / "r.json", *run.parse(OPTIONS).our_options)
    run_process(command, dict(os.environ), tmp_path / "log", 120)

    result = RunResult.read(tmp_path / "r.json")
    workload = make_workload("tiny", num_requests=3)
    assert [len(output) for output in result.outputs] == [r.num_output_tokens for r in workload.requests]
    assert result.num_output_tokens == workload.num_output_tokens
    assert result.output_tokens_per_second == pytest.approx(workload.num_output_tokens / result.wall_seconds)
    assert result.peak_rss_bytes > 50e6
    assert 0 <= result.other_cpu_share <= 1
    assert result.settings.items() >= SETTINGS.items()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (OPTIONS, SETTINGS),
        (["--deterministic", "--set", "block_size=8"], {"deterministic": True, "block_size": 8}),
    ],
)
def test_the_options_of_the_command_line_configure_the_engine_that_runs(
    checkpoint: Path, tmp_path: Path, options: list[str], settings: dict[str, object]
) -> None:
    command = our_runner(checkpoint, tmp_path / "r.json", *run.parse(options).our_options)
    _, _, _, *arguments = command

    assert engine_settings(parser().parse_args(arguments)).items() >= settings.items()


def test_a_setting_our_engine_does_not_have_is_named(checkpoint: Path, tmp_path: Path) -> None:
    command = our_runner(checkpoint, tmp_path / "r.json", "--set", "warp_speed=9")
    with pytest.raises(RunFailedError, match="no setting 'warp_speed'"):
        run_process(command, dict(os.environ), tmp_path / "log", 120)
    assert not (tmp_path / "r.json").exists()


def test_a_run_that_takes_too_long_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    # Shell and sleeper both hold the pipe's other end, so it ends when both are gone.
    command = ["sh", "-c", f"exec 3> '{tmp_path}/pipe'; echo started >&3; sleep 300 & wait"]
    with pytest.raises(RunFailedError, match="not done after 2 s"):
        run_process(command, dict(os.environ), tmp_path / "log", 2)
    os.set_blocking(reading, True)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "started\n"


def test_a_wrong_number_of_tokens_is_a_failure_that_says_whose() -> None:
    requests = [BenchRequest(0, (5,), 2), BenchRequest(1, (5,), 3)]
    assert length_problem(requests, {0: [7, 7], 1: [7, 7, 7]}) is None
    assert "request 1: 2 of 3" in str(length_problem(requests, {0: [7, 7], 1: [7, 7]}))
    assert "request 1: 0 of 3" in str(length_problem(requests, {0: [7, 7]}))


def test_ours_runs_before_and_after_each_peer() -> None:
    assert run.order([OURS, "a", "b"]) == [OURS, "a", OURS, "b", OURS]
    assert run.order([OURS]) == [OURS]
    assert run.order(["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--engines", "nightshift,warp"], "--engines takes names of"),
        (["--workloads", "huge"], "--workloads takes names of"),
        (["--dtypes", "float16"], "--dtypes takes names of"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--max-num-seqs", "-1"], "--max-num-seqs must be at least 1, got -1"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_is_right(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.parse(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_options_of_our_engine_reach_our_runner_only() -> None:
    plan = run.parse(["--deterministic", "--kv-dtype", "int8", "--set", "block_size=16", "--requests", "3"])
    assert plan.our_options == ("--deterministic", "--kv-dtype", "int8", "--set", "block_size=16")
    assert plan.runner_options == ("--seed", "1234", "--max-num-seqs", "64", "--requests", "3")


def test_a_whole_round_writes_its_table_and_says_what_could_not_be_run(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (launch, run):
        for name in ("LOGS_DIRECTORY", "RESULTS_DIRECTORY"):
            monkeypatch.setattr(module, name, tmp_path)
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    monkeypatch.setattr("benchmarks.checkpoints.ensure", lambda *_: checkpoint)

    status = run.main(
        ["--engines", "nightshift,ctranslate2", "--workloads", "tiny", "--dtypes", "bfloat16",
         "--requests", "2", "--threads", "1", "--no-limits"]
    )  # fmt: skip

    assert status == 0
    report = json.loads(next(tmp_path.glob("2*.json")).read_text())
    by_engine = {row["engine"]: row for row in report["rows"]}
    assert by_engine[OURS]["tokens_per_second"] > 0
    assert by_engine["ctranslate2"]["problem"] == "does not compute in bfloat16 on CPU"
    assert "| ctranslate2 | – | does not compute in bfloat16 on CPU |" in capsys.readouterr().out
