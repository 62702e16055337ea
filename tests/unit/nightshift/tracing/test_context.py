"""`traceparent` is read as OpenTelemetry's own propagator reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nightshift.tracing.context import TraceContext

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def library_reads(traceparent: str) -> TraceContext | None:
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    found = get_current_span(context).get_span_context()
    if not found.is_valid:
        return None
    return TraceContext(found.trace_id, found.span_id, bool(found.trace_flags.sampled))


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("03", True), ("fe", False)])
def test_a_valid_one_names_a_span_and_says_whether_its_trace_is_sampled(flags: str, is_sampled: bool) -> None:
    found = TraceContext.parse(f"00-{TRACE}-{SPAN}-{flags}")

    assert found == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled)
    assert found.trace_id_hex == TRACE


def test_of_a_later_version_the_known_part_is_read() -> None:
    found = TraceContext.parse(f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like")

    assert found is not None
    assert found.traceparent == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{'٤' * 32}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 500}",
        "DROP TABLE job",
        "\0" * 55,
    ],
)
def test_a_malformed_or_oversized_one_is_ignored(malformed: str) -> None:
    assert TraceContext.parse(malformed) is None


@given(
    st.one_of(
        st.text(max_size=80),
        st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[a-z]{0,9})?", fullmatch=True),
        st.from_regex(r"[ \t]{0,2}0[01]-0{30}[0-9a-f]{2}-0{15}[01]-0[0-3][ \t]{0,2}", fullmatch=True),
    )
)
def test_it_is_read_as_the_library_reads_it(traceparent: str) -> None:
    assume_one_line = traceparent.replace("\n", "")  # a header has one; the library's pattern lets one end it

    assert TraceContext.parse(assume_one_line) == library_reads(assume_one_line)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read_again(trace_id: int, span_id: int, is_sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, is_sampled)

    assert TraceContext.parse(context.traceparent) == context
    assert len(context.traceparent) == 55
