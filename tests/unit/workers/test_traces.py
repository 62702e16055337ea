"""Spans of a shard's rows: of the first that succeed and the first that fail, up to a limit of each."""

from typing import Any

from opentelemetry.trace import INVALID_SPAN

from nightshift.bulk.results.row_results import RowResult
from nightshift.store import Store
from tests.helpers.fakes import a_row_result
from tests.unit.workers.scripted import claim_bulk, plan_bulk
from workers.traces import ERROR_SPANS_MAX, ROW_SPANS_MAX, ShardTrace


class Noting(ShardTrace):
    """Notes the rows whose spans would be made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.recorded: list[RowResult] = []

    def _record(self, result: RowResult, *about: Any) -> None:
        self.recorded.append(result)


def test_rows_that_succeed_and_rows_that_fail_are_recorded_up_to_a_limit_of_each(store: Store) -> None:
    plan_bulk(store, "file-input")
    trace = Noting(INVALID_SPAN, claim_bulk(store))
    for row in range(100):
        trace.row_ended(a_row_result(row, "r"), None, None)  # another row's result
        trace.row_ended(a_row_result(row, "r"), (0.0, 1), None)
        trace.row_ended(a_row_result(row, "r", status_code=500), (0.0, 3), None)
        trace.row_ended(a_row_result(row, "r", status_code=400), None, None)

    succeeded = [result.succeeded for result in trace.recorded]
    assert (succeeded.count(True), succeeded.count(False)) == (ROW_SPANS_MAX, ERROR_SPANS_MAX)
