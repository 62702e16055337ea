"""Ways to a PostgreSQL server and back that a transaction can do without.

A connection from the pool whose server was heard a moment ago, and has said nothing since, is there without
being asked: who ends a connection says so. And a transaction is told the time as it begins, since nearly all
of them want to know it first.
"""

import select
from collections.abc import Generator
from time import monotonic
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, event

from nightshift.store.databases.statement_timeouts import PatientConnection

T = TypeVar("T")

HEARD_LATELY_S: Final = 10.0  # sooner than anything between us and the server forgets an idle connection

# clock_timestamp moves within a transaction; now() would be frozen at its start.
NOW_MS: Final = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


class SparingConnection(PatientConnection):
    """Remembers when it last heard of the server, and what time that said it was."""

    _heard_at_s: float = float("-inf")
    _began_at_ms: int | None = None

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        self._began_at_ms = None
        answer = super().wait(gen, *arguments, **options)
        self._heard_at_s = monotonic()
        return answer

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


def spare(engine: Engine) -> None:
    """Have this engine, whose connections are of the kind above, ask no more than it needs to."""
    ask = engine.dialect.do_ping

    def begin_ourselves(dbapi_connection: Any, record: Any) -> None:
        dbapi_connection.autocommit = True

    def ping(dbapi_connection: Any) -> bool:
        return dbapi_connection.was_heard_lately() or ask(dbapi_connection)

    def begin(dbapi_connection: Any) -> None:
        dbapi_connection.begin()

    event.listen(engine, "connect", begin_ourselves)
    engine.dialect.do_ping = ping  # type: ignore[method-assign]
    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def time_of_begin_ms(connection: Connection) -> int | None:
    """See `SparingConnection.take_time_of_begin_ms`."""
    ours: Any = connection.connection.dbapi_connection
    taken: int | None = ours.take_time_of_begin_ms()
    return taken
