"""Spans of a worker: claims, leases of shards with some of their rows, and online requests.

They are made once something has ended, of the times that were noted. A claim is told at once: a worker that
dies with what it has claimed can tell nothing later.
"""

import time
from typing import Final

from opentelemetry.trace import Span, SpanKind

from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import Answer, BulkClaim, OnlineClaim
from nightshift.jobs.leases import Lease
from nightshift.process.tracing import attributes as names
from nightshift.process.tracing import gen_ai
from nightshift.process.tracing.spans import Value, child, end, follow, is_on, parsed
from nightshift_engine import RequestTimes

ROW_SPANS_MAX: Final = 16  # rows of a lease that succeed …
ERROR_SPANS_MAX: Final = 32  # … and those that fail: a shard may have thousands, and all of them may fail


def record_claim(
    claim: OnlineClaim | BulkClaim, began_s: float, ended_s: float, sender: str | None = None
) -> None:
    """`sender`: the `traceparent` of the message that named what was claimed. Any client of Redis can write
    one, so it is only a link, and only within the job's trace.
    """
    link, parent = parsed(sender), parsed(claim.job.traceparent)
    if link is not None and (parent is None or link.trace_id != parent.trace_id):
        link = None
    span = follow(claim.job.traceparent, "claim", kind=SpanKind.CONSUMER, began_s=began_s, link=link)
    taken_over = _taken_over(claim) if isinstance(claim, BulkClaim) else {}
    end(span, taken_over | _about_lease(claim.lease), ended_s=ended_s)


class ShardTrace:
    """A lease that is recorded. Only the shard's thread calls it, but for `reads`."""

    def __init__(self, span: Span, claim: BulkClaim) -> None:
        self.span = span
        self._job = claim.job
        self._name = gen_ai.span_name(claim.job.spec.endpoint, claim.job.model)
        self._about: dict[str, Value] = {
            **_about_lease(claim.lease),
            **_taken_over(claim),
            names.TENANT: claim.lease.tenant_id,
            names.PRIORITY: claim.job.priority.value,
            names.SHARD_NO: claim.shard.shard_no,
        }
        self._rows = self._failed = self._reused = self._succeeded_here = 0

    @classmethod
    def begin(cls, claim: BulkClaim) -> "ShardTrace | None":
        """Begins the span of a lease. None: it is not recorded."""
        submit = claim.job.traceparent
        span = follow(submit, "shard", kind=SpanKind.CONSUMER, link=parsed(submit) if is_on() else None)
        return cls(span, claim) if span.is_recording() else None

    def reads(self) -> Span:
        """Begins the reading of its rows."""
        return child("read", parent=self.span)

    def row_ended(
        self, result: RowResult, begun: tuple[float, int] | None, times: RequestTimes | None
    ) -> None:
        """A row has its result. `begun`: when it began, and in how many tries; None: no engine had it."""
        self._rows += 1
        self._failed += not result.succeeded
        self._reused += result.is_reused
        if not result.succeeded:
            is_recorded = self._failed <= ERROR_SPANS_MAX
        elif begun is None:
            is_recorded = False  # the result of another row
        else:
            self._succeeded_here += 1
            is_recorded = self._succeeded_here <= ROW_SPANS_MAX
        if is_recorded:
            self._record(result, begun, times)

    def ended(self, outcome: str, error: str | None) -> None:
        """`error`: the type of what ended it."""
        counts: dict[str, Value] = {
            names.ROWS: self._rows,
            names.ROWS_FAILED: self._failed,
            names.ROWS_REUSED: self._reused,
        }
        end(self.span, self._about | counts | {names.OUTCOME: outcome}, error=error)

    def _record(self, result: RowResult, begun: tuple[float, int] | None, times: RequestTimes | None) -> None:
        now_s = time.monotonic()
        began_s, tries = begun or (now_s, 1)
        span = child(self._name, parent=self.span, began_s=began_s)
        if times is not None and result.succeeded:
            _record_phases(span, times, now_s)
        about: dict[str, Value] = {names.ROW: result.row, names.ROW_STATUS: result.status_code}
        if tries > 1:
            about[names.ROW_TRIES] = tries
        about |= gen_ai.request(self._job.spec.endpoint, self._job.model)
        about |= gen_ai.usage(result.usage.prompt_tokens, result.usage.completion_tokens)
        end(span, about, error=None if result.succeeded else str(result.status_code), ended_s=now_s)


class OnlineTrace:
    """One lease of an online request, from its claim on."""

    def __init__(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        job = claim.job
        self._span = follow(
            job.traceparent,
            gen_ai.span_name(job.spec.endpoint, job.model),
            kind=SpanKind.CONSUMER,
            began_s=claimed_at_s,
        )
        self._about = gen_ai.request(job.spec.endpoint, job.model) | _about_lease(claim.lease)
        self._about |= {names.TENANT: job.tenant_id, names.PRIORITY: job.priority.value}
        self._times: RequestTimes | None = None
        self._answered_s = 0.0

    def ended_in_engine(self, times: RequestTimes | None) -> None:
        """Called on the engine's thread."""
        self._times, self._answered_s = times, time.monotonic()

    def told(self, answer: Answer | None) -> None:
        """The answer is recorded and announced; None: its job was stopped."""
        if self._times is not None:
            _record_phases(self._span, self._times, self._answered_s)
        if answer is None:
            self.given_up("stopped")
            return
        if self._answered_s:
            end(child("answer", parent=self._span, began_s=self._answered_s))
        about = gen_ai.usage(answer.usage.prompt_tokens, answer.usage.completion_tokens)
        about |= {names.ROW_STATUS: answer.status_code}
        error = str(answer.status_code) if answer.status_code >= 500 else None
        end(self._span, self._about | about, error=error)

    def given_up(self, outcome: str) -> None:
        """This worker leaves it to another, or its job was stopped."""
        end(self._span, self._about | {names.OUTCOME: outcome})


def _about_lease(lease: Lease) -> dict[str, Value]:
    return {
        names.JOB: lease.job_id,
        names.SHARD: lease.shard_id,
        names.TERM: lease.term,
        names.WORKER: lease.worker_id,
    }


def _taken_over(claim: BulkClaim) -> dict[str, Value]:
    """The lease before, whose worker may have been killed: it can tell nothing of its end itself."""
    before = claim.took_over
    if before is None:
        return {}
    return {
        names.TAKEOVER_TERM: before.term,
        names.TAKEOVER_WORKER: before.worker_id,
        names.TAKEOVER_CAUSE: before.cause,
    }


def _record_phases(span: Span, times: RequestTimes, ended_s: float) -> None:
    """The children of a request: `queue`, then `prefill` and `decode`, or `encode` where it has no tokens.

    `ended_s`: when its end was known, on the monotonic clock.
    """

    def record(name: str, began_s: float, ended_s: float) -> None:
        end(child(name, parent=span, began_s=began_s), ended_s=ended_s)

    launched_s, first_token_s = times.launched_s, times.first_token_s
    record("queue", times.added_s, ended_s if launched_s is None else launched_s)
    if launched_s is not None and first_token_s is None:
        record("encode", launched_s, ended_s)
    elif launched_s is not None and first_token_s is not None:
        record("prefill", launched_s, first_token_s)
        record("decode", first_token_s, times.last_token_s)
