"""How a duty's work ends its span early."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span

from nightshift.process.tracing.attributes import OUTCOME
from nightshift.process.tracing.spans import end, under
from scheduler.runtime.duty import Interrupted


@contextmanager
def working_under(span: Span) -> Iterator[None]:
    """Make it the current one. It ends with an error if the block raises, except to stop this scheduler."""
    with under(span):
        try:
            yield
        except Interrupted:
            end(span, {OUTCOME: "interrupted"})
            raise
        except BaseException as error:
            end(span, error=type(error).__name__)
            raise
