"""One lease of a shard as spans: itself, the reading of its rows, and some of the rows.

Of the rows, those that the ratio of `OTEL_TRACES_SAMPLER_ARG` chooses are recorded, and those that failed,
up to a number of each: a shard may have thousands, and all of them may fail.
"""

import time
import zlib
from dataclasses import dataclass
from typing import Final

from nightshift.jobs import BulkClaim
from nightshift.output.row_results import RowResult
from nightshift.tracing import gen_ai
from nightshift.tracing.attributes import (
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
from nightshift.tracing.context import TraceContext
from nightshift.tracing.tracer import Kind, Span, Tracer, Value
from workers.engine import RequestTimes
from workers.intake.traces import taken_over
from workers.serving.traces import record_phases
from workers.shard.in_flight import InFlight

ROW_SPANS_MAX: Final = 16  # of a lease
ERROR_SPANS_MAX: Final = 32  # beside those
HASHES: Final = 2**32


@dataclass
class RowQuota:
    """Which rows of a lease have a span. A row of a shard that is run again has one again."""

    ratio: float
    seed: int  # of the job and the shard
    sampled: int = 0
    errors: int = 0

    def takes(self, row: int, *, is_error: bool) -> bool:
        if is_error:
            if self.errors >= ERROR_SPANS_MAX:
                return False
            self.errors += 1
            return True
        if self.sampled >= ROW_SPANS_MAX or zlib.crc32(b"%d" % row, self.seed) >= self.ratio * HASHES:
            return False
        self.sampled += 1
        return True


class ShardTrace:
    """Of a traced job. Only the shard's thread calls it, but for `reads`."""

    def __init__(self, tracer: Tracer, claim: BulkClaim, traceparent: str) -> None:
        self._job = claim.job
        self._name = gen_ai.span_name(claim.job.spec.endpoint, claim.job.model)
        submit = TraceContext.parse(traceparent)
        self.span = tracer.follow(traceparent, "shard", kind=Kind.CONSUMER, link=submit)
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
        seed = zlib.crc32(lease.shard_id.encode())
        is_sampled = self.span.context is not None and self.span.context.is_sampled
        self._quota = RowQuota(tracer.ratio if is_sampled else 0.0, seed)
        self._rows = self._failed = self._reused = 0

    @classmethod
    def of(cls, tracer: Tracer, claim: BulkClaim) -> "ShardTrace | None":
        """None: it is not traced."""
        if not tracer.is_on or TraceContext.parse(claim.job.traceparent) is None:
            return None
        assert claim.job.traceparent is not None, "it was parsed"
        return cls(tracer, claim, claim.job.traceparent)

    def reads(self) -> Span:
        """Begins the reading of its rows."""
        return self.span.start("read")

    def row_ended(self, result: RowResult, flight: InFlight | None, times: RequestTimes | None) -> None:
        """A row has its result. `flight`: None for one that no engine had."""
        self._rows += 1
        self._failed += not result.succeeded
        self._reused += result.is_reused
        if flight is None and result.succeeded:
            return  # the result of another row
        if self._quota.takes(result.row, is_error=not result.succeeded):
            self._record(result, flight, times)

    def ended(self, outcome: str, error: str | None) -> None:
        """`error`: the type of what ended it."""
        counts: dict[str, Value] = {ROWS: self._rows, ROWS_FAILED: self._failed, ROWS_REUSED: self._reused}
        self.span.end(self._about | counts | {OUTCOME: outcome}, error=error, is_kept=self._failed > 0)

    def _record(self, result: RowResult, flight: InFlight | None, times: RequestTimes | None) -> None:
        now_s = time.monotonic()
        span = self.span.start(self._name, began_s=now_s if flight is None else flight.since_s)
        if times is not None and result.succeeded:
            record_phases(span, times, now_s)
        about: dict[str, Value] = {ROW: result.row, ROW_STATUS: result.status_code}
        if flight is not None and flight.admitted.tries > 1:
            about[ROW_TRIES] = flight.admitted.tries
        about |= gen_ai.request(self._job.spec.endpoint, self._job.model)
        about |= gen_ai.usage(result.usage.prompt_tokens, result.usage.completion_tokens)
        span.end(about, error=None if result.succeeded else str(result.status_code), ended_s=now_s)
