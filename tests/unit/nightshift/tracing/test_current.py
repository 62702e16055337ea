"""The current span gives its trace to what is submitted, and its ids to log lines."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from nightshift.observability import JsonFormatter
from nightshift.testing import a_new_job
from nightshift.tracing.context import TraceContext
from nightshift.tracing.current import current, current_traceparent, under
from nightshift.tracing.tracer import NO_SPAN, NoSpan

CONTEXT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, True)


class Here(NoSpan):
    context = CONTEXT  # type: ignore[assignment,misc]


def line() -> dict[str, object]:
    record = logging.LogRecord("nightshift", logging.INFO, "", 0, "said", (), None)
    found: dict[str, object] = json.loads(JsonFormatter("api").format(record))
    return found


def test_a_job_that_is_submitted_under_a_span_joins_its_trace() -> None:
    with under(Here()):
        assert a_new_job().traceparent == CONTEXT.traceparent
    assert a_new_job().traceparent is None


def test_a_log_line_under_a_span_has_its_ids_and_no_other_has() -> None:
    with under(Here()):
        assert line()["trace_id"] == CONTEXT.trace_id_hex
        assert line()["span_id"] == CONTEXT.span_id_hex
    assert "trace_id" not in line()


def test_a_new_thread_has_no_span_unless_it_is_given_its_context() -> None:
    with under(Here()), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current).result() is NO_SPAN
        assert pool.submit(copy_context().run, current_traceparent).result() == CONTEXT.traceparent
