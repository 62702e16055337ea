"""One lease of an online request as spans."""

import time

from opentelemetry.trace import SpanKind

from nightshift.jobs import Answer, OnlineClaim
from nightshift.process.tracing import gen_ai
from nightshift.process.tracing.attributes import (
    JOB,
    OUTCOME,
    PRIORITY,
    ROW_STATUS,
    SHARD,
    TENANT,
    TERM,
    WORKER,
)
from nightshift.process.tracing.spans import child, end, follow
from nightshift_engine import RequestTimes
from workers.serving.traces import record_phases


class OnlineTrace:
    """From its claim on."""

    def __init__(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        job, lease = claim.job, claim.lease
        self._span = follow(
            job.traceparent,
            gen_ai.span_name(job.spec.endpoint, job.model),
            kind=SpanKind.CONSUMER,
            began_s=claimed_at_s,
        )
        self._about = gen_ai.request(job.spec.endpoint, job.model) | {
            JOB: job.id,
            TENANT: job.tenant_id,
            PRIORITY: job.priority.value,
            SHARD: lease.shard_id,
            TERM: lease.term,
            WORKER: lease.worker_id,
        }
        self._times: RequestTimes | None = None
        self._answered_s = 0.0

    def ended_in_engine(self, times: RequestTimes | None) -> None:
        """On the engine's thread."""
        self._times, self._answered_s = times, time.monotonic()

    def told(self, answer: Answer | None) -> None:
        """The answer is recorded and announced; None: its job was stopped."""
        if self._times is not None:
            record_phases(self._span, self._times, self._answered_s)
        if answer is None:
            self._end("stopped")
            return
        if self._answered_s:
            end(child("answer", of=self._span, began_s=self._answered_s))
        about = gen_ai.usage(answer.usage.prompt_tokens, answer.usage.completion_tokens)
        about |= {ROW_STATUS: answer.status_code}
        end(
            self._span,
            self._about | about,
            error=str(answer.status_code) if answer.status_code >= 500 else None,
        )

    def given_up(self, outcome: str) -> None:
        """This worker leaves it to another."""
        self._end(outcome)

    def _end(self, outcome: str) -> None:
        end(self._span, self._about | {OUTCOME: outcome})
