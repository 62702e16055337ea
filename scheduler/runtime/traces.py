"""How a duty's work ends its span early."""

from collections.abc import Iterator
from contextlib import contextmanager

from nightshift.tracing.attributes import OUTCOME
from nightshift.tracing.current import under
from nightshift.tracing.tracer import Span
from scheduler.runtime.duty import Interrupted


@contextmanager
def working_under(span: Span) -> Iterator[None]:
    """Make it the current one. It ends with an error if the block raises, except to stop this scheduler."""
    with under(span):
        try:
            yield
        except Interrupted:
            span.end({OUTCOME: "interrupted"})
            raise
        except BaseException as error:
            span.end(error=type(error).__name__)
            raise
