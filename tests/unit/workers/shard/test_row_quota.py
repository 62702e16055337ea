"""Rows of a lease that have a span: a share of them, and all that failed, up to a number of each."""

import pytest

from workers.shard.traces import ERROR_SPANS_MAX, ROW_SPANS_MAX, RowQuota


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.5, 1.0])
def test_as_many_rows_are_taken_as_the_ratio_says_up_to_a_limit(ratio: float) -> None:
    taken = [len(taken_of(RowQuota(ratio, seed), rows=1000)) for seed in range(200)]

    expected = min(ROW_SPANS_MAX, 1000 * ratio)
    assert sum(taken) / len(taken) == pytest.approx(expected, rel=0.15)
    assert max(taken) <= ROW_SPANS_MAX


def test_a_shard_that_is_run_again_shows_the_same_rows() -> None:
    assert taken_of(RowQuota(0.02, 7), rows=500) == taken_of(RowQuota(0.02, 7), rows=500)
    assert taken_of(RowQuota(0.02, 7), rows=500) != taken_of(RowQuota(0.02, 8), rows=500)


def test_errors_are_taken_whatever_the_ratio_is_and_however_many_rows_were_up_to_a_limit() -> None:
    quota = RowQuota(0.0, 1)
    taken_of(quota, rows=1000)

    assert sum(quota.takes(row, is_error=True) for row in range(1000)) == ERROR_SPANS_MAX


def taken_of(quota: RowQuota, rows: int) -> list[int]:
    return [row for row in range(rows) if quota.takes(row, is_error=False)]
