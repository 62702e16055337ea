"""Fewer round trips to PostgreSQL.

A pooled connection that answered recently and has received nothing since is used without a ping: a server
that ends a connection says so. BEGIN also fetches the time, which nearly every transaction needs first.
"""

import select
from collections.abc import Generator
from time import monotonic
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, event

from nightshift.store.databases.statement_timeouts import TimedConnection

T = TypeVar("T")

HEARD_LATELY_S: Final = 10.0  # shorter than any firewall or proxy keeps an idle connection

# now() is frozen at the transaction's start.
NOW_MS: Final = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


class ReusedConnection(TimedConnection):
    """Remembers its last answer's time and its latest BEGIN's."""

    _heard_at_s: float = float("-inf")
    _began_at_ms: int | None = None

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        self._began_at_ms = None
        answer = super().wait(gen, *arguments, **options)
        self._heard_at_s = monotonic()
        return answer

    def begin(self) -> None:
        answers = self.execute(f"BEGIN; {NOW_MS}", prepare=False)  # two statements cannot be prepared
        answers.nextset()
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


def install(engine: Engine) -> None:
    """Make this engine of `ReusedConnection`s ping and begin as above."""
    ask_server = engine.dialect.do_ping

    def begin_ourselves(dbapi_connection: Any, record: Any) -> None:
        dbapi_connection.autocommit = True

    def ping(dbapi_connection: Any) -> bool:
        return dbapi_connection.was_heard_lately() or ask_server(dbapi_connection)

    def begin(dbapi_connection: Any) -> None:
        dbapi_connection.begin()

    event.listen(engine, "connect", begin_ourselves)
    engine.dialect.do_ping = ping  # type: ignore[method-assign]
    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def time_of_begin_ms(connection: Connection) -> int | None:
    """See `ReusedConnection.take_time_of_begin_ms`."""
    ours: Any = connection.connection.dbapi_connection
    taken: int | None = ours.take_time_of_begin_ms()
    return taken
