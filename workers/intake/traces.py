"""Claims as spans, told at once: a worker that dies with what it has claimed can tell nothing later."""

from nightshift.jobs import BulkClaim, OnlineClaim
from nightshift.tracing.attributes import JOB, SHARD, TERM, WORKER
from nightshift.tracing.context import TraceContext
from nightshift.tracing.tracer import Kind, Tracer


def record_claim(
    tracer: Tracer, claim: OnlineClaim | BulkClaim, began_s: float, ended_s: float, sender: str | None = None
) -> None:
    """`sender`: the `traceparent` of the message that named what was claimed. Any client of Redis can write
    one, so it is only a link, and only within the job's trace.
    """
    link = TraceContext.parse(sender)
    of = TraceContext.parse(claim.job.traceparent)
    if link is not None and (of is None or link.trace_id != of.trace_id):
        link = None
    lease = claim.lease
    span = tracer.follow(claim.job.traceparent, "claim", kind=Kind.CONSUMER, began_s=began_s, link=link)
    span.end(
        {JOB: lease.job_id, SHARD: lease.shard_id, TERM: lease.term, WORKER: lease.worker_id}, ended_s=ended_s
    )
