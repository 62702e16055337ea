"""One lease of a shard as spans: itself, the reading of its rows, and some of the rows.

The first rows that end well are recorded and the first that fail, up to a number of each: a shard may have
thousands, and all of them may fail.
"""

import time
from dataclasses import dataclass
from typing import Final

from opentelemetry.trace import Span, SpanKind

from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import BulkClaim
from nightshift.process.tracing import gen_ai
from nightshift.process.tracing.attributes import (
    JOB,
    OUTCOME,
    PRIORITY,
    ROW,
    ROW_STATUS,
    ROW_TRIES,
    ROWS,
    ROWS_FAILED,
    ROWS_REUSED,
    SHARD,
    SHARD_NO,
    TENANT,
    TERM,
    WORKER,
)
from nightshift.process.tracing.spans import Value, child, end, follow, is_on, parsed
from nightshift_engine import RequestTimes
from workers.intake.traces import taken_over
from workers.serving.traces import record_phases
from workers.shard.row import InFlight

ROW_SPANS_MAX: Final = 16  # of a lease
ERROR_SPANS_MAX: Final = 32  # beside those


@dataclass
class RowQuota:
    """Which rows of a lease have a span. A row of a shard that is run again has one again."""

    succeeded: int = 0
    failed: int = 0

    def takes(self, *, is_error: bool) -> bool:
        if is_error:
            self.failed += 1
            return self.failed <= ERROR_SPANS_MAX
        self.succeeded += 1
        return self.succeeded <= ROW_SPANS_MAX


class ShardTrace:
    """A lease that is recorded. Only the shard's thread calls it, but for `reads`."""

    def __init__(self, span: Span, claim: BulkClaim) -> None:
        self.span = span
        self._job = claim.job
        self._name = gen_ai.span_name(claim.job.spec.endpoint, claim.job.model)
        lease = claim.lease
        self._about: dict[str, Value] = {
            JOB: lease.job_id,
            TENANT: lease.tenant_id,
            PRIORITY: claim.job.priority.value,
            SHARD: lease.shard_id,
            SHARD_NO: claim.shard.shard_no,
            TERM: lease.term,
            WORKER: lease.worker_id,
            **taken_over(claim),
        }
        self._quota = RowQuota()
        self._rows = self._failed = self._reused = 0

    @classmethod
    def of(cls, claim: BulkClaim) -> "ShardTrace | None":
        """None: it is not recorded."""
        submit = claim.job.traceparent
        span = follow(submit, "shard", kind=SpanKind.CONSUMER, link=parsed(submit) if is_on() else None)
        return cls(span, claim) if span.is_recording() else None

    def reads(self) -> Span:
        """Begins the reading of its rows."""
        return child("read", of=self.span)

    def row_ended(self, result: RowResult, flight: InFlight | None, times: RequestTimes | None) -> None:
        """A row has its result. `flight`: None for one that no engine had."""
        self._rows += 1
        self._failed += not result.succeeded
        self._reused += result.is_reused
        if flight is None and result.succeeded:
            return  # the result of another row
        if self._quota.takes(is_error=not result.succeeded):
            self._record(result, flight, times)

    def ended(self, outcome: str, error: str | None) -> None:
        """`error`: the type of what ended it."""
        counts: dict[str, Value] = {ROWS: self._rows, ROWS_FAILED: self._failed, ROWS_REUSED: self._reused}
        end(self.span, self._about | counts | {OUTCOME: outcome}, error=error)

    def _record(self, result: RowResult, flight: InFlight | None, times: RequestTimes | None) -> None:
        now_s = time.monotonic()
        span = child(self._name, of=self.span, began_s=now_s if flight is None else flight.since_s)
        if times is not None and result.succeeded:
            record_phases(span, times, now_s)
        about: dict[str, Value] = {ROW: result.row, ROW_STATUS: result.status_code}
        if flight is not None and flight.admitted.tries > 1:
            about[ROW_TRIES] = flight.admitted.tries
        about |= gen_ai.request(self._job.spec.endpoint, self._job.model)
        about |= gen_ai.usage(result.usage.prompt_tokens, result.usage.completion_tokens)
        end(span, about, error=None if result.succeeded else str(result.status_code), ended_s=now_s)
