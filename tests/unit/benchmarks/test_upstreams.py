"""The service beside vLLM's own benchmark: the same rows for both, and each run beside those around it."""

import pytest

from benchmarks.upstreams import Run, compared, dataset_row, ratios


def test_a_run_is_compared_with_the_runs_before_and_after_it() -> None:
    assert ratios([9.0, 11.0], around=[10.0, 8.0, 12.0]) == pytest.approx([1.0, 1.1])


def test_both_send_the_same_prompt_for_the_same_number_of_tokens() -> None:
    row = {"custom_id": "row-0", "body": {"prompt": "a b", "max_tokens": 7, "temperature": 0}}

    assert dataset_row(row) == {"prompt": "a b", "output_tokens": 7}


def test_the_table_has_the_ratio_with_its_range_and_the_cpu_of_both_parts() -> None:
    alone = [Run(100.0, 4.0, 1.0), Run(100.0, 6.0, 1.0), Run(120.0, 5.0, 1.0)]
    served = [Run(97.0, 3.0, 0.5), Run(110.0, 3.0, 0.7)]

    first, second = compared("bench", alone, served, {"others' CPU": "2%"})

    assert (first["who"], first["CPU of a row, engine, ms"], first["its sender, ms"]) == ("bench", 5.0, 1.0)
    assert (second["who"], second["rows/s"]) == ("service", "97–110")
    assert second["of the best"] == "0.985 (0.970–1.000)"
    assert (second["its sender, ms"], second["others' CPU"]) == (pytest.approx(0.6), "2%")
