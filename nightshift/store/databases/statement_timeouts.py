"""PostgreSQL connections that wait for an answer for so long and no longer.

The server ends statements that run for too long (`statement_timeout`). That helps nobody whose server, or
the network before it, says nothing at all: TCP notices in a quarter of an hour, and something between the
two that goes on acknowledging is never noticed. So the wait itself ends here, by our own clock, and the
connection with it: what became of the statement is not known.
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
GRACE_S: Final = 1.0  # for the server to say that it has ended a statement

_LIMITS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


class PatientConnection(psycopg.Connection[Any]):
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
    """Nothing has come for too long."""


def _until(ends_at_s: float, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The same wait, which gives up at the first moment past its end in which nothing has arrived: a process
    that was frozen itself finds the answer there.
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
    """What the server is asked to see to, so that it lets go of locks whose owner has gone."""
    limit_ms = round(timeout_s * 1000)
    asked_for = url.query.get("options", ())
    own = (asked_for,) if isinstance(asked_for, str) else asked_for
    return " ".join([*(f"-c {limit}={limit_ms}" for limit in _LIMITS), *own])  # the last one counts


def connect_patiently(
    engine: Engine, timeout_s: float, kind: type[PatientConnection] = PatientConnection
) -> None:
    """Have this engine's connections made by us."""

    def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> PatientConnection:
        connection = kind.connect(*arguments, **options)
        connection.answer_timeout_s = timeout_s + GRACE_S
        return connection

    event.listen(engine, "do_connect", connect)


@contextmanager
def suspended(connection: Connection) -> Iterator[None]:
    """Within this transaction, wait for as long as it takes."""
    for limit in _LIMITS:
        connection.execute(text(f"SET LOCAL {limit} = 0"))
    ours: Any = connection.connection.dbapi_connection
    usual_s, ours.answer_timeout_s = ours.answer_timeout_s, float("inf")
    try:
        yield
    finally:
        ours.answer_timeout_s = usual_s
