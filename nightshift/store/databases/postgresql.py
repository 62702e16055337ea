"""Connections to PostgreSQL: no answer is waited for without a limit, and few round trips are made.

The server's `statement_timeout` does not help against a silent server or network: TCP notices after a quarter
of an hour, or never behind a proxy that acknowledges. So the client closes the connection; the statement's
outcome is then unknown.

A pooled connection that answered recently and has received nothing since is used without a ping: a server
that ends a connection says so. BEGIN also fetches the time, which nearly every transaction needs first,
and says where the commit need not wait for the disk.
"""

import select
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, ExceptionContext

from nightshift.store.databases import failures

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 5
GRACE_S: Final = 1.0  # for the server to report that it ended a statement
HEARD_LATELY_S: Final = 10.0  # shorter than any firewall or proxy keeps an idle connection
_LIMITS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
_INVALID_VALUE: Final = "22"  # the class of invalid values, by their SQLSTATE

# now() is frozen at the transaction's start.
_NOW_MS: Final = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"
_BEGIN: Final = f"BEGIN; {_NOW_MS}"
_BEGIN_REDONE: Final = f"BEGIN; SET LOCAL synchronous_commit = off; {_NOW_MS}"


class ServerConnection(psycopg.Connection[Any]):
    """Raises OperationalError and closes when an answer takes longer than `answer_timeout_s`. Remembers its
    last answer's time and its latest BEGIN's.
    """

    answer_timeout_s: float = float("inf")
    next_is_redone: bool = False  # see `Database.write`
    _heard_at_s: float = float("-inf")
    _began_at_ms: int | None = None

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        self._began_at_ms = None
        ends_at_s = monotonic() + self.answer_timeout_s
        try:
            answer = super().wait(_until(ends_at_s, gen), *arguments, **options)
        except _Silence:
            self.pgconn.finish()
            message = f"no answer within {self.answer_timeout_s:g} s"
            raise psycopg.OperationalError(message) from None
        self._heard_at_s = monotonic()
        return answer

    def begin(self) -> None:
        statements = _BEGIN_REDONE if self.next_is_redone else _BEGIN
        answers = self.execute(statements, prepare=False)  # several statements cannot be prepared
        while answers.nextset():
            pass
        (self._began_at_ms,) = answers.fetchone() or (None,)

    def take_time_of_begin_ms(self) -> int | None:
        """The server's time at BEGIN, once, and only if no other statement ran since."""
        taken, self._began_at_ms = self._began_at_ms, None
        return taken

    def was_heard_lately(self) -> bool:
        """Whether the server answered recently and has not ended the session."""
        if self.closed or monotonic() - self._heard_at_s > HEARD_LATELY_S:
            return False
        unasked = select.poll()
        unasked.register(self.fileno(), select.POLLIN)
        return not unasked.poll(0)


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


def engine(url: URL, pool_size: int, timeout_s: float) -> Engine:
    created = create_engine(
        url,
        hide_parameters=True,  # they hold prompts, and errors are logged
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=timeout_s,
        pool_pre_ping=True,
        pool_use_lifo=True,  # the most recently used is the quickest
        connect_args={
            "connect_timeout": url.query.get("connect_timeout", CONNECT_TIMEOUT_S),
            "options": server_options(url, timeout_s),
        },
    )
    ask_server = created.dialect.do_ping

    def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> ServerConnection:
        connection = ServerConnection.connect(*arguments, **options)
        connection.answer_timeout_s = timeout_s + GRACE_S
        connection.autocommit = True  # BEGIN is sent explicitly
        return connection

    def ping(dbapi_connection: Any) -> bool:
        return dbapi_connection.was_heard_lately() or ask_server(dbapi_connection)

    def begin(dbapi_connection: Any) -> None:
        dbapi_connection.begin()

    event.listen(created, "do_connect", connect)
    event.listen(created, "begin", _say_what_is_redone)
    created.dialect.do_ping = ping  # type: ignore[method-assign]
    created.dialect.do_begin = begin  # type: ignore[method-assign]
    # One statement for many rows. psycopg would send one each with a single sync at the end; until then the
    # server's time limits do not apply, and a vanished client keeps its locks.
    created.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(created, "handle_error", _leave_a_server_that_cannot_write)
    event.listen(created, "handle_error", _show_no_values)
    return created


def server_options(url: URL, timeout_s: float) -> str:
    """The server's own limits, so that it releases a vanished client's locks."""
    limit_ms = round(timeout_s * 1000)
    options = url.query.get("options", ())
    own = (options,) if isinstance(options, str) else options
    return " ".join([*(f"-c {limit}={limit_ms}" for limit in _LIMITS), *own])  # the last one wins


def _say_what_is_redone(connection: Connection) -> None:
    ours: Any = connection.connection.dbapi_connection
    ours.next_is_redone = connection.get_execution_options().get("nightshift_redone", False)


def now_ms(connection: Connection) -> int:
    """The database's time in milliseconds since 1970: BEGIN's, where no other statement ran since."""
    ours: Any = connection.connection.dbapi_connection
    began_at_ms: int | None = ours.take_time_of_begin_ms()
    if began_at_ms is not None:
        return began_at_ms
    return int(connection.execute(text(_NOW_MS)).scalar_one())


@contextmanager
def without_limits(connection: Connection) -> Iterator[None]:
    """Lifts all limits within this transaction."""
    for limit in _LIMITS:
        connection.execute(text(f"SET LOCAL {limit} = 0"))
    ours: Any = connection.connection.dbapi_connection
    usual_s, ours.answer_timeout_s = ours.answer_timeout_s, float("inf")
    try:
        yield
    finally:
        ours.answer_timeout_s = usual_s


def _leave_a_server_that_cannot_write(context: ExceptionContext) -> None:
    """Leaves a server that cannot write: after a failover, connections to the new standby are useless."""
    if failures.sqlstate(context.sqlalchemy_exception) == failures.READ_ONLY:
        context.is_disconnect = True


def _show_no_values(context: ExceptionContext) -> None:
    """Errors are logged. PostgreSQL's details show the row that a constraint refuses and the text that is no
    JSON; so does the message itself where a value is invalid (class 22).
    """
    original = context.original_exception
    shown = getattr(getattr(original, "diag", None), "message_primary", None)
    if shown is None:  # the driver's own
        return
    if (failures.sqlstate(context.sqlalchemy_exception) or "").startswith(_INVALID_VALUE):
        shown = "a value is invalid"
    whole = str(original)
    original.args = (shown,)
    if context.sqlalchemy_exception is not None:  # its message was made from the whole one
        context.sqlalchemy_exception.args = tuple(
            part.replace(whole, shown) if isinstance(part, str) else part
            for part in context.sqlalchemy_exception.args
        )
