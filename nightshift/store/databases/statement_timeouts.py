"""PostgreSQL connections whose wait for an answer is limited on the client's side too.

The server ends statements that run for too long (`statement_timeout`). A server or network that is silent
ends none: TCP notices after a quarter of an hour, and never where a proxy between the two goes on
acknowledging. So the wait ends here, by our own clock, and the connection with it: what became of the
statement is not known.
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
    """Raises OperationalError, and is closed, when an answer takes longer than `answer_timeout_s`."""

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
    """The server has sent nothing for too long."""


def _until(ends_at_s: float, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The same wait, ended past its time only if nothing has arrived: a process that was frozen itself finds
    the answer there.
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
    """Limits for the server to enforce, so that it releases the locks of a client that has gone."""
    limit_ms = round(timeout_s * 1000)
    asked_for = url.query.get("options", ())
    own = (asked_for,) if isinstance(asked_for, str) else asked_for
    return " ".join([*(f"-c {limit}={limit_ms}" for limit in _LIMITS), *own])  # the last one counts


def use_timed_connections(
    engine: Engine, timeout_s: float, kind: type[TimedConnection] = TimedConnection
) -> None:
    """Have this engine make connections of this kind."""

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
