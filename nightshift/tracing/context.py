"""A place in a trace, as W3C Trace Context writes it: https://www.w3.org/TR/trace-context/#traceparent-header

Only `traceparent` is read. `tracestate` is a caller's free text, which nothing here needs: it is not kept.
"""

import re
from dataclasses import dataclass
from typing import Final

TRACEPARENT_CHARS: Final = 55  # of version 00
TRACEPARENT_CHARS_MAX: Final = 512  # of a later version; a longer one is not looked at
SAMPLED: Final = 1  # the flag

_TRACEPARENT: Final = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL
)
_NO_VERSION: Final = "ff"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span, known by its ids. `is_sampled`: what its process has decided about its trace."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @classmethod
    def parse(cls, traceparent: str | None) -> "TraceContext | None":
        """None for what is no valid `traceparent`; of a later version, what version 00 has of it."""
        if traceparent is None or len(traceparent) > TRACEPARENT_CHARS_MAX:
            return None
        found = _TRACEPARENT.fullmatch(traceparent.strip(" \t"))
        if found is None:
            return None
        version, trace_id, span_id, flags, rest = found.groups()
        if version == _NO_VERSION or (version == "00" and rest is not None):
            return None
        if not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & SAMPLED))

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id_hex}-{self.span_id_hex}-{SAMPLED if self.is_sampled else 0:02x}"

    @property
    def trace_id_hex(self) -> str:
        return f"{self.trace_id:032x}"

    @property
    def span_id_hex(self) -> str:
        return f"{self.span_id:016x}"
