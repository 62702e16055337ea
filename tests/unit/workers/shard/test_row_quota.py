"""Rows of a lease that have a span: the first that succeed and the first that fail, up to a limit of each."""

from workers.shard.traces import ERROR_SPANS_MAX, ROW_SPANS_MAX, RowQuota


def test_rows_that_succeed_and_rows_that_fail_are_taken_up_to_a_limit_of_each() -> None:
    quota = RowQuota()

    assert [quota.takes(is_error=False) for _ in range(1000)].count(True) == ROW_SPANS_MAX
    assert [quota.takes(is_error=True) for _ in range(1000)].count(True) == ERROR_SPANS_MAX
