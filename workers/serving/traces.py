"""A request in an engine as spans, made once it has ended, of the times that the engine noted."""

from nightshift.tracing.tracer import Span
from workers.engine import RequestTimes


def record_phases(span: Span, times: RequestTimes, ended_s: float) -> None:
    """The children of a request: `queue`, then `prefill` and `decode`, or `encode` where it has no tokens.

    `ended_s`: when its end was known, on the monotonic clock.
    """
    launched_s, first_token_s = times.launched_s, times.first_token_s
    if launched_s is None:
        span.start("queue", began_s=times.added_s).end(ended_s=ended_s)
        return
    span.start("queue", began_s=times.added_s).end(ended_s=launched_s)
    if first_token_s is None:
        span.start("encode", began_s=launched_s).end(ended_s=ended_s)
        return
    span.start("prefill", began_s=launched_s).end(ended_s=first_token_s)
    span.start("decode", began_s=first_token_s).end(ended_s=times.last_token_s)
