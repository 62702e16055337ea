"""The comparison of engines of images: the same images for everyone, and ratios to the runs around."""

import pytest

from benchmarks.images import SIDES, compared, sizes
from benchmarks.launch import RunFailedError
from benchmarks.runners.images import ImageRun


def run(seconds: float, score: float = 0.5) -> ImageRun:
    return ImageRun(10, seconds, "float32", 0.0, [[score, 1 - score]])


def test_the_same_seed_gives_the_same_sizes_and_all_are_in_range() -> None:
    assert sizes(50, seed=1) == sizes(50, seed=1) != sizes(50, seed=2)
    for width, height in sizes(50):
        assert max(width, height) in SIDES
        assert min(width, height) >= max(width, height) * 9 // 16


def test_a_ratio_is_to_the_runs_of_ours_around_it_and_the_middle_of_all_rounds_counts() -> None:
    rounds = [(run(1.0), run(2.0), run(3.0)), (run(1.0), run(3.0), run(1.0)), (run(1.0), run(2.0), run(1.0))]
    row = compared((8, 1), rounds)
    assert row["ours / it"] == 2.0
    assert row["engine"] == "transformers, batches of 8, 1 loaders"


def test_engines_that_compute_something_else_are_not_compared() -> None:
    with pytest.raises(RunFailedError, match="differ"):
        compared((8, 1), [(run(1.0), run(2.0, score=0.6), run(1.0))])
