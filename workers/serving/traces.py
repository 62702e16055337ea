"""A request in an engine as spans, made once it has ended, of the times that the engine noted."""

from opentelemetry.trace import Span

from nightshift.process.tracing.spans import child, end
from nightshift_engine import RequestTimes


def record_phases(span: Span, times: RequestTimes, ended_s: float) -> None:
    """The children of a request: `queue`, then `prefill` and `decode`, or `encode` where it has no tokens.

    `ended_s`: when its end was known, on the monotonic clock.
    """
    launched_s, first_token_s = times.launched_s, times.first_token_s
    if launched_s is None:
        _record(span, "queue", times.added_s, ended_s)
        return
    _record(span, "queue", times.added_s, launched_s)
    if first_token_s is None:
        _record(span, "encode", launched_s, ended_s)
        return
    _record(span, "prefill", launched_s, first_token_s)
    _record(span, "decode", first_token_s, times.last_token_s)


def _record(of: Span, name: str, began_s: float, ended_s: float) -> None:
    end(child(name, of=of, began_s=began_s), ended_s=ended_s)
