"""The table's arithmetic: medians, ratios against our neighbouring runs, shares of the limit."""

from __future__ import annotations

import pytest

from benchmarks.peers import OURS
from benchmarks.runners.harness import RunResult
from benchmarks.table import Run, markdown, ratios_to_ours, rows


def run_of(engine: str, speed: float, *, outputs: list[list[int]] | None = None, other: float = 0.0) -> Run:
    """A run that made 100 tokens at `speed` tokens per second."""
    result = RunResult(
        engine=engine,
        version="1",
        workload="small",
        precision="float32",
        threads=2,
        settings={},
        num_requests=2,
        num_prompt_tokens=10,
        num_output_tokens=100,
        load_seconds=3.0,
        wall_seconds=100 / speed,
        peak_rss_bytes=500_000_000,
        other_cpu_share=other,
        outputs=outputs or [[1, 2], [3, 4]],
    )
    return Run(engine, "small", "float32", result)


def failed(engine: str, problem: str) -> Run:
    return Run(engine, "small", "float32", None, problem)


def test_a_peer_is_compared_with_our_runs_just_before_and_after_it() -> None:
    runs = [run_of(OURS, 100), run_of("peer", 100), run_of(OURS, 300), run_of("slow", 10), run_of(OURS, 500)]
    assert ratios_to_ours(runs, "small", "float32", "peer") == pytest.approx([2.0])
    assert ratios_to_ours(runs, "small", "float32", "slow") == pytest.approx([40.0])


def test_a_run_of_ours_that_failed_is_no_neighbour() -> None:
    runs = [run_of(OURS, 100), run_of("peer", 50), failed(OURS, "out of memory"), run_of("other", 50)]
    assert ratios_to_ours(runs, "small", "float32", "peer") == pytest.approx([2.0])


def test_without_any_run_of_ours_there_is_no_ratio() -> None:
    (row,) = rows([run_of("peer", 50)], {})
    assert row.tokens_per_second == pytest.approx(50)
    assert row.ours_over_it is None


def test_rounds_are_summed_up_by_their_median_and_range() -> None:
    runs = [run_of("peer", speed, other=speed / 1000) for speed in (10, 40, 20)]
    (row,) = rows(runs, {("small", "float32"): 80.0})
    assert (row.tokens_per_second, row.tokens_per_second_min, row.tokens_per_second_max) == pytest.approx(
        (20, 10, 40)
    )
    assert row.of_limit == pytest.approx(0.25)
    assert row.other_cpu_share == pytest.approx(0.04)


def test_outputs_of_which_only_the_length_is_known_are_not_compared() -> None:
    table = rows([run_of(OURS, 100), run_of("service", 50, outputs=[[-1, -1], [-1, -1]])], {})
    assert {row.engine: row.same_outputs for row in table} == {OURS: None, "service": None}


def test_outputs_are_compared_request_by_request() -> None:
    table = rows([run_of(OURS, 100), run_of("peer", 50, outputs=[[1, 2], [3, 5]])], {})
    assert {row.engine: row.same_outputs for row in table} == {OURS: None, "peer": 0.5}


def test_an_engine_without_a_figure_stays_in_the_table_with_the_reason() -> None:
    text = markdown(rows([failed("peer", "could not be installed: no wheel"), run_of(OURS, 100)], {}))
    ours, peer = [line for line in text.splitlines() if line.startswith(("| nightshift", "| peer"))]
    assert "100" in ours
    assert "could not be installed: no wheel" in peer


def test_a_run_that_others_disturbed_says_so() -> None:
    text = markdown(rows([run_of("quiet", 10, other=0.05), run_of("loud", 10, other=0.5)], {}))
    assert [line.split()[1] for line in text.splitlines() if "(disturbed)" in line] == ["loud"]
