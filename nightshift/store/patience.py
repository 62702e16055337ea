"""PostgreSQL connections that wait for an answer for so long and no longer.

The server ends statements that run for too long (`statement_timeout`). That helps nobody whose server, or
the network before it, says nothing at all: TCP notices in a quarter of an hour, and something between the
two that goes on acknowledging is never noticed. So the wait itself ends here, by our own clock, and the
connection with it: what became of the statement is not known.

What is not worth a way to the server and back is not asked, or asked along with something else. A connection
from the pool whose server was heard a moment ago, and has said nothing since, is there: who ends a connection
says so. And a transaction is told the time as it begins, since nearly all of them want to know it first.
"""

import select
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
HEARD_LATELY_S: Final = 10.0  # sooner than anything between us and the server forgets an idle connection

# clock_timestamp moves within a transaction; now() would be frozen at its start.
NOW_MS: Final = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"

_LIMITS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


class PatientConnection(psycopg.Connection[Any]):
    """Raises OperationalError, and is closed, when an answer takes longer than `answer_timeout_s`."""

    answer_timeout_s: float = float("inf")
    _heard_at_s: float = float("-inf")
    _began_at_ms: int | None = None

    def begin(self) -> None:
        """A transaction."""
        answers = self.execute(f"BEGIN; {NOW_MS}", prepare=False)  # two statements cannot be prepared
        answers.nextset()
        (self._began_at_ms,) = answers.fetchone() or (None,)

    def take_time_of_begin_ms(self) -> int | None:
        """The server's time when this transaction began; once, and only if nothing was asked since."""
        taken, self._began_at_ms = self._began_at_ms, None
        return taken

    def was_heard_lately(self) -> bool:
        """Whether the server has answered a moment ago, and sent nothing unasked since, like a farewell."""
        if self.closed or monotonic() - self._heard_at_s > HEARD_LATELY_S:
            return False
        unasked = select.poll()
        unasked.register(self.fileno(), select.POLLIN)
        return not unasked.poll(0)

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        ends_at_s = monotonic() + self.answer_timeout_s
        self._began_at_ms = None
        try:
            answer = super().wait(_until(ends_at_s, gen), *arguments, **options)
        except _Silence:
            self.pgconn.finish()
            message = f"no answer within {self.answer_timeout_s:g} s"
            raise OperationalError(message) from None
        self._heard_at_s = monotonic()
        return answer


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


def connect_patiently(engine: Engine, timeout_s: float) -> None:
    """Have this engine's connections made by us."""

    def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> PatientConnection:
        connection = PatientConnection.connect(
            *arguments, autocommit=True, **options
        )  # we say BEGIN ourselves
        connection.answer_timeout_s = timeout_s + GRACE_S
        return connection

    event.listen(engine, "do_connect", connect)
    ask = engine.dialect.do_ping

    def ping(dbapi_connection: Any) -> bool:
        return dbapi_connection.was_heard_lately() or ask(dbapi_connection)

    def begin(dbapi_connection: Any) -> None:
        dbapi_connection.begin()

    engine.dialect.do_ping = ping  # type: ignore[method-assign]
    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def time_of_begin_ms(connection: Connection) -> int | None:
    """See `PatientConnection.take_time_of_begin_ms`."""
    ours: Any = connection.connection.dbapi_connection
    taken: int | None = ours.take_time_of_begin_ms()
    return taken


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
