"""Claims as spans, told at once: a worker that dies with what it has claimed can tell nothing later."""

from opentelemetry.trace import SpanKind

from nightshift.jobs import BulkClaim, OnlineClaim
from nightshift.process.tracing.attributes import (
    JOB,
    SHARD,
    TAKEOVER_CAUSE,
    TAKEOVER_TERM,
    TAKEOVER_WORKER,
    TERM,
    WORKER,
)
from nightshift.process.tracing.spans import Value, end, follow, parsed


def taken_over(claim: BulkClaim) -> dict[str, Value]:
    """Of the lease before, whose worker may have been killed: it can tell nothing of its end itself."""
    before = claim.took_over
    if before is None:
        return {}
    return {TAKEOVER_TERM: before.term, TAKEOVER_WORKER: before.worker_id, TAKEOVER_CAUSE: before.cause}


def record_claim(
    claim: OnlineClaim | BulkClaim, began_s: float, ended_s: float, sender: str | None = None
) -> None:
    """`sender`: the `traceparent` of the message that named what was claimed. Any client of Redis can write
    one, so it is only a link, and only within the job's trace.
    """
    link = parsed(sender)
    of = parsed(claim.job.traceparent)
    if link is not None and (of is None or link.trace_id != of.trace_id):
        link = None
    lease, about = claim.lease, {}
    if isinstance(claim, BulkClaim):
        about = taken_over(claim)
    span = follow(claim.job.traceparent, "claim", kind=SpanKind.CONSUMER, began_s=began_s, link=link)
    about |= {JOB: lease.job_id, SHARD: lease.shard_id, TERM: lease.term, WORKER: lease.worker_id}
    end(span, about, ended_s=ended_s)
