"""The benchmark of the data plane runs, and its figures are of a job that ended well."""

from benchmarks.data_plane import SHARD_ROWS, measured


def test_it_measures_a_job_that_ends_with_all_its_rows() -> None:
    figures = {figure.unit: figure.value for figure in measured(SHARD_ROWS + 10)}

    assert set(figures) == {"us", "rows/s", "s", "bytes"}
    assert 1536 < figures["bytes"] < 1800
    assert figures["us"] > 0
