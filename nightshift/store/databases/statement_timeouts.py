"""PostgreSQL connections that limit the wait for an answer on the client's side too.

The server's `statement_timeout` does not help against a silent server or network: TCP notices after a quarter
of an hour, or never behind a proxy that acknowledges. So the client closes the connection; the statement's
outcome is then unknown.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg import OperationalError
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import URL

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 5
GRACE_S: Final = 1.0  # for the server to report that it ended a statement

_LIMITS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


class TimedConnection(psycopg.Connection[Any]):
    """Raises OperationalError and closes when an answer takes longer than `answer_timeout_s`."""

    answer_timeout_s: float = float("inf")

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        ends_at_s = monotonic() + self.answer_timeout_s
        try:
            return super().wait(_until(ends_at_s, gen), *arguments, **options)
        except _Silence:
            self.pgconn.finish()
            message = f"no answer within {self.answer_timeout_s:g} s"
            raise OperationalError(message) from None


class _Silence(Exception):
    """The server was silent for too long."""


def _until(ends_at_s: float, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The same wait, ended past its time only if nothing has arrived: after a freeze of this process the
    answer may be there.
    """
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and monotonic() >= ends_at_s:
                raise _Silence
            wanted = gen.send(ready)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


def server_options(url: URL, timeout_s: float) -> str:
    """The server's own limits, so that it releases a vanished client's locks."""
    limit_ms = round(timeout_s * 1000)
    asked_for = url.query.get("options", ())
    own = (asked_for,) if isinstance(asked_for, str) else asked_for
    return " ".join([*(f"-c {limit}={limit_ms}" for limit in _LIMITS), *own])  # the last one wins


def use_timed_connections(
    engine: Engine, timeout_s: float, kind: type[TimedConnection] = TimedConnection
) -> None:
    """Make this engine's connections of this kind."""

    def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> TimedConnection:
        connection = kind.connect(*arguments, **options)
        connection.answer_timeout_s = timeout_s + GRACE_S
        return connection

    event.listen(engine, "do_connect", connect)


@contextmanager
def suspended(connection: Connection) -> Iterator[None]:
    """No limits within this transaction."""
    for limit in _LIMITS:
        connection.execute(text(f"SET LOCAL {limit} = 0"))
    ours: Any = connection.connection.dbapi_connection
    usual_s, ours.answer_timeout_s = ours.answer_timeout_s, float("inf")
    try:
        yield
    finally:
        ours.answer_timeout_s = usual_s
